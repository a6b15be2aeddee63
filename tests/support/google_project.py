"""A fake project of Google Cloud that answers requests for rights and quotas over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeProject:
    """The answers of the project.

    Attributes:
        rights: permissions of the caller; None if the API is not enabled.
        quotas: by id, the value in each zone or region.
    """

    rights: set[str] | None = None
    quotas: dict[str, dict[str, int]] = field(default_factory=dict)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve the project; yield host and port for `GOOGLE_PROJECT_EMULATOR_HOST`."""
        project = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["permissions"]
                has = None if project.rights is None else [name for name in asked if name in project.rights]
                self._answer(None if has is None else {"permissions": has})

            def do_GET(self) -> None:
                quota = project.quotas.get(self.path.rpartition("/")[2])
                infos = [
                    {"details": {"value": str(value)}, "applicableLocations": [place]}
                    for place, value in (quota or {}).items()
                ]
                self._answer(None if quota is None else {"dimensionsInfos": infos})

            def _answer(self, found: Any) -> None:
                body = json.dumps(found or {"error": {"status": "PERMISSION_DENIED"}}).encode()
                self.send_response(403 if found is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
