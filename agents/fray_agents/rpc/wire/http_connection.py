"""HTTP messages over a socket, after the handshake."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, TypeVar

from fray_agents.rpc.errors import BadMessage
from fray_agents.rpc.wire.framing import RECEIVE_BYTES, HttpMessage, MessageParser
from fray_agents.rpc.wire.sockets import STALL_TIMEOUT, PlainSocket, with_timeouts

if TYPE_CHECKING:
    from fray_agents.rpc.wire.tls import TlsSocket

Space = TypeVar("Space", bytearray, memoryview)


class HttpConnection:
    """A connection that carries HTTP messages.

    requests, max_body: for the incoming messages; see `MessageParser`.
    """

    def __init__(self, sock: socket.socket, requests: bool, max_body: int) -> None:
        self.sock: PlainSocket | TlsSocket = with_timeouts(sock)
        self._parser = MessageParser(requests, max_body)

    def close(self) -> None:
        """Wake threads that wait for the socket, and close it."""
        with contextlib.suppress(OSError):  # it was no longer connected
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def abandon(self) -> None:
        """In the child of a fork: close the socket, which the parent still uses."""
        self.sock.close()

    def readable(self, seconds: float) -> bool:
        """Whether a message, or a part of one, arrives within `seconds`."""
        return self._parser.waiting or self.sock.readable(seconds)

    def _next(self) -> HttpMessage | None:
        """The next message, a large one with the start of its body; None if the other side has closed."""
        while (message := self._parser.next()) is None:
            if not (data := self._more()):
                return None
            self._parser.feed(data)
        return message

    def _more(self) -> bytes:
        while True:
            try:
                return self._receive()
            except BlockingIOError:  # nothing arrived within `STALL_TIMEOUT`
                if self._parser.begun:
                    raise BadMessage(f"a message did not continue for {STALL_TIMEOUT:.0f} s") from None

    def _receive(self) -> bytes:
        return self.sock.recv(RECEIVE_BYTES)


class BodyReader:
    """Reads a large body: first the bytes that the parser already has, then from the socket."""

    def __init__(self, sock: PlainSocket | TlsSocket, had: bytes) -> None:
        self._sock = sock
        self._had = memoryview(had)

    def read(self, target: Space) -> Space:
        """Fill `target` with the next bytes. Raises ConnectionResetError: the other side has closed."""
        view = memoryview(target)
        begun = min(len(self._had), len(view))
        view[:begun] = self._had[:begun]
        self._had = self._had[begun:]
        while begun < len(view):
            if not (count := self._sock.recv_into(view[begun:])):
                raise ConnectionResetError("closed within a message")
            begun += count
        return target
