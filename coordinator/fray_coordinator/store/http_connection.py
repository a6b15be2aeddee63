"""One HTTP/1.1 connection to an object store: a request at a time, its answer parsed by httptools as it arrives."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from httptools import HttpParserError, HttpResponseParser

from fray_coordinator.store.interface import AttemptFailed, BadObject, Unknown

MAX_ERROR_BODY = 1024**2
"""Bytes that are read of the answer to a request that failed; the rest tells nobody more."""
MAX_HEAD_BYTES = 64 * 1024
"""Bytes of an answer's headers: eight times what the services send."""
PIECE_BYTES = 256 * 1024
"""Bytes of a body that are given to the transport at a time, so that it never holds a second copy of a large one."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer as it came, whatever its status. The names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class IncomingAnswer:
    """An answer that is arriving.

    Attributes:
        received: done when all of it is here. Raises `BadObject` if its body is too long, `Unknown` if it breaks off.
        reusable: the connection may carry another request.

    Args:
        most: bytes that the body of a success may have.
        on_head: called with the bytes of the body that are to be read, when its headers are complete.
        head_only: it ends with its headers, as a proxy's answer to CONNECT does.
    """

    def __init__(self, most: int, on_head: Callable[[int], None], head_only: bool = False) -> None:
        self.received: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self._parser = HttpResponseParser(self)
        self._most = most
        self._on_head = on_head
        self._head_only = head_only
        self._headers: dict[str, str] = {}
        self._bytes = 0
        self._head_complete = False
        self._parts: list[bytes] = []
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        if self.received.done():
            self.reusable = False
            return
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
            if not self._head_complete and self._bytes > MAX_HEAD_BYTES:
                raise HttpParserError(f"its headers have more than {MAX_HEAD_BYTES} bytes")
        except HttpParserError as error:
            # What a callback raised is inside of it.
            cause = error.__context__ if isinstance(error.__context__, AttemptFailed) else None
            self.fail(cause or Unknown(f"the answer is no HTTP: {error}"))

    def end(self, reason: Exception | None) -> None:
        """The connection is closed: that ends an answer which says neither its length nor that it comes in chunks."""
        framed = self._headers.keys() & {"content-length", "transfer-encoding"}
        if reason is None and self._head_complete and not framed and not self.received.done():
            self._finish()
        self.fail(Unknown(f"the connection broke: {reason or 'the server closed it'}"))

    def fail(self, failure: AttemptFailed) -> None:
        self.reusable = False
        if not self.received.done():
            self.received.set_exception(failure)

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        if self.received.done():
            self.reusable = False  # an answer that nobody has asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._head_complete = True
        self._left = self._most if status < 300 else MAX_ERROR_BODY
        length = self._headers.get("content-length", "")
        told = int(length) if length.isascii() and length.isdecimal() else 0
        if told > self._left and status < 300:
            raise self._too_long()
        self._on_head(min(told, self._left))
        if self._head_only:
            self.reusable = True
            self._finish()

    def on_body(self, part: bytes) -> None:
        if self.received.done():
            return
        self._parts.append(part[: self._left])
        self._left -= len(part)
        if self._left < 0:
            if self._parser.get_status_code() < 300:
                raise self._too_long()
            self._finish()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._headers = {}
        elif not self.received.done():
            self.reusable = self._parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        self.received.set_result(HttpAnswer(self._parser.get_status_code(), self._headers, b"".join(self._parts)))

    def _too_long(self) -> BadObject:
        return BadObject(f"it has more than the {self._most} bytes that may lie under this name")


class StorageConnection(asyncio.Protocol):
    """A connection to an object store, or to a proxy before it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer: IncomingAnswer | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    async def exchange(self, head: bytes, data: bytes, answer: IncomingAnswer) -> HttpAnswer:
        """Send a request and wait for its answer. Raises `Unknown` and `BadObject`; the connection is closed then."""
        self._answer = answer
        try:
            await self._send(head, data)
            found = await answer.received
        except BaseException:
            self.abort()
            if not answer.received.cancel() and not answer.received.cancelled():
                answer.received.exception()  # asyncio need not tell that nobody has looked at it
            raise
        self._answer = None
        if not answer.reusable:
            self.abort()
        return found

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Go on encrypted, through a proxy's tunnel to `host`."""
        loop = asyncio.get_running_loop()
        upgraded = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if upgraded is None:
            raise ConnectionError("it was closed while encryption began")
        self._transport = upgraded

    def abort(self) -> None:
        """Close it at once, whatever it carries."""
        self._transport.abort()

    async def _send(self, head: bytes, data: bytes) -> None:
        if len(data) <= PIECE_BYTES:
            self._transport.write(head + data)
            return
        self._transport.write(head)
        view = memoryview(data)
        for start in range(0, len(data), PIECE_BYTES):
            await self._writable.wait()
            if self._transport.is_closing() or self._answer is None or self._answer.received.done():
                return  # the connection broke, or it was answered before all of it was sent
            self._transport.write(view[start : start + PIECE_BYTES])

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # nobody has asked for anything
        else:
            self._answer.feed(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._answer is not None:
            self._answer.end(exc)
