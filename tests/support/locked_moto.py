"""moto's S3 server behind one lock, because its compare-and-swap is not atomic between threads. Prints its URL."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

moto = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()


def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    with lock:
        return list(moto(environ, start_response))


class KeepAlive(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=KeepAlive)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
