"""moto's S3 as a server of its own: run as a script, it prints its port and serves until standard input ends.

Every request takes one lock, because moto checks a condition and stores the object in two steps, so two conditional
puts at once could both succeed. It uses HTTP/1.1 without Nagle's algorithm. Otherwise each request would wait for a
packet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_mutex = threading.Lock()
_moto = DomainDispatcherApplication(create_backend_app)


def serve_one(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    with _mutex:
        return [b"".join(_moto(environ, start_response))]


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_request(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, serve_one, threaded=True, request_handler=Handler)
    server.socket.listen(1024)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
