"""Sockets that listen for callers, and the certificate of a server."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fray_agents.rpc.wire.sockets import host_and_port

if TYPE_CHECKING:
    from fray_agents.rpc.wire.tls import ServerCertificate

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted: all members of a large gang may connect at once."""


def listen_tcp(host: str, port: int = 0) -> socket.socket:
    """A socket that listens at `host`; port 0 chooses a free one."""
    return _listen(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))


def listen_unix(path: Path) -> socket.socket:
    """A Unix socket that listens at `path`, in a directory that only this user can enter."""
    sock = _listen(socket.AF_UNIX, str(path))
    os.chmod(path, 0o600)
    return sock


def address_of(sock: socket.socket) -> str:
    """The "host:port" of a TCP socket."""
    return host_and_port(*sock.getsockname()[:2])


def certificate_if(encrypted: bool) -> ServerCertificate | None:
    """A new certificate, if the server encrypts connections; else None."""
    if not encrypted:
        return None
    from fray_agents.rpc.wire.tls import ServerCertificate

    return ServerCertificate()


def _listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.listen(BACKLOG)
    return sock
