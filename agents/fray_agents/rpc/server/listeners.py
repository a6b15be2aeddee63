"""The sockets that servers listen on."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fray_agents.host.directories import private_dir

if TYPE_CHECKING:
    from fray_agents.rpc.wire.tls import ServerCertificate

BACKLOG = 1024


def listen_tcp(host: str, port: int = 0) -> socket.socket:
    """Listen at that address; port 0 takes a free one."""
    return _listen(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))


def listen_unix(path: Path) -> socket.socket:
    """Listen on a Unix socket in a directory that is this user's alone, or is made so. Raises `NotOurs`."""
    private_dir(path.parent)
    sock = _listen(socket.AF_UNIX, str(path))
    os.chmod(path, 0o600)  # nobody else could reach it before: its directory is 0700
    return sock


def address_of(sock: socket.socket) -> str:
    """ "host:port" of a TCP socket."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def certificate_if(encrypted: bool) -> ServerCertificate | None:
    """A new certificate for a server that encrypts."""
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
