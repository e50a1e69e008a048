"""The reference server of Durable Streams, from npm, for tests and comparisons."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.npm import install, installed

REFERENCE = ("npm-streams", "@durable-streams/server@0.3.7")


def package() -> Path:
    """The folder of the reference server's package.

    :raises PackagesMissingError: it cannot be installed.
    """
    return install(*REFERENCE) / "node_modules" / "@durable-streams" / "server"


@contextmanager
def reference_server(**options: Any) -> Iterator[str]:
    """The address of a running reference server. The options are those of its `DurableStreamTestServer`.
    Skips the test if the server cannot be installed.
    """
    installed(*REFERENCE)
    place = package()
    script = Path(__file__).with_name("node_streams.mjs")
    process = subprocess.Popen(
        ["node", script, place, json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the reference server did not start"
        yield address
    finally:
        process.communicate(timeout=30)
