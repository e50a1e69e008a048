"""The demo's store on the page of `opslog serve`: how to see it, and a server for it while the agents work.

The server is `python -m opslog.demo.page STORE`. It ends when its input ends, so it does not outlive the demo, however
that ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from opslog.demo.workers import DemoError
from opslog.environment import REAL

_START_SECONDS = 30.0
_END_SECONDS = 15.0
_TICK_SECONDS = 0.05
# The store's name on the page, and its place there.
_NAME = "demo"
_PLACE = f"/#/store/{_NAME}"


def advice(store: Path) -> str:
    """How to see the store when the demo is over."""
    command = shlex.join(["opslog", "serve", "--store", f"{_NAME}={store}"])
    return f"To see its store: {command}\nand open http://127.0.0.1:4437{_PLACE}\n"


class PageServer:
    """A process that serves the store, which must exist already.

    :param errors: the file for the server's stderr.
    :ivar address: of the store on the page.
    :raises DemoError: it did not start.
    """

    def __init__(self, store: Path, errors: Path) -> None:
        with errors.open("xb") as file:
            # A process group of its own, as for the workers: Ctrl-C reaches only the conductor.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opslog.demo.page", str(store)],
                stdin=subprocess.PIPE,
                stderr=file,
                process_group=0,
            )
        try:
            self.address = self._started(errors).partition("/v1/")[0] + _PLACE
        except BaseException:
            self.end()
            raise

    def _started(self, errors: Path) -> str:
        """The URL that the server prints."""
        deadline = REAL.monotonic() + _START_SECONDS
        while True:
            ended = self._process.poll() is not None
            said = errors.read_text(encoding="utf-8")
            for line in said.splitlines():
                if line.startswith("{") and (found := _decoded(line)).get("message") == "serving":
                    return str(found["url"])
            if ended or REAL.monotonic() >= deadline:
                raise DemoError(f"the page could not be served: {said.strip()}")
            REAL.sleep(_TICK_SECONDS)

    def show(self) -> bool:
        """Open it in a browser. Returns False if there is no screen, or no browser."""
        has_screen = sys.platform in {"darwin", "win32"} or bool(
            os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        )
        return has_screen and webbrowser.open(self.address)

    def wait(self) -> None:
        """Wait until somebody interrupts this, or the server ends."""
        with suppress(KeyboardInterrupt):
            self._process.wait()

    def end(self) -> None:
        """Leave no process behind."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _decoded(line: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}  # half a line: the rest follows


def _end_with_input() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    try:
        from opslog.doors.logs import configure
        from opslog.server import Options, app
        from opslog.server.http.serving import Address, serve
    except ImportError as error:
        raise SystemExit(f"the page is of an extra: pip install 'opslog[server]' ({error})") from error
    threading.Thread(target=_end_with_input, name="end-with-input", daemon=True).start()
    configure("info", json=True)
    serve(app(options=Options(local_stores=True), stores={_NAME: sys.argv[1]}), Address(port=0))


if __name__ == "__main__":
    main()
