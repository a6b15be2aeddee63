"""One HTTP/1.1 connection to an object store. It carries one request at a time; httptools parses the answer."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from httptools import HttpParserError, HttpResponseParser

from fray_coordinator.store.interface import AttemptFailed, BadObject, Unknown
from fray_coordinator.store.key_rules import too_large

MAX_ERROR_BODY = 1024**2
"""Bytes that are read of a failed request's answer; more would not help anybody."""
MAX_HEAD_BYTES = 64 * 1024
"""Largest headers of an answer, in bytes: eight times what the services send."""
PIECE_BYTES = 256 * 1024
"""Bytes of a body that are given to the transport at a time, so that it never holds a second copy of a large body."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer as it came, whatever its status. The names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class IncomingAnswer:
    """An answer that is arriving.

    Attributes:
        received: resolves when the answer is complete. Raises `BadObject` if the body is too long, `Unknown` if the
            answer breaks off.
        reusable: whether the connection may carry another request.

    Args:
        max_body: largest body of a success, in bytes.
        on_head: called when the headers are complete, with the number of body bytes to read.
        head_only: the answer ends with its headers, like a proxy's answer to CONNECT.
    """

    def __init__(self, max_body: int, on_head: Callable[[int], None], head_only: bool = False) -> None:
        self.received: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self._parser = HttpResponseParser(self)
        self._max_body = max_body
        self._on_head = on_head
        self._head_only = head_only
        self._headers: dict[str, str] = {}
        self._bytes = 0
        self._head_complete = False
        self._parts: list[bytes] = []
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Process bytes that have arrived."""
        if self.received.done():
            self.reusable = False
            return
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
            if not self._head_complete and self._bytes > MAX_HEAD_BYTES:
                raise HttpParserError(f"its headers have more than {MAX_HEAD_BYTES} bytes")
        except HttpParserError as error:
            # httptools wraps an exception of a callback.
            cause = error.__context__ if isinstance(error.__context__, AttemptFailed) else None
            self.fail(cause or Unknown(f"the answer is not HTTP: {error}"))

    def end(self, reason: Exception | None) -> None:
        """Handle the end of the connection, which ends an answer without a length and without chunks."""
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
            self.reusable = False  # an answer without a request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._head_complete = True
        self._left = self._max_body if status < 300 else MAX_ERROR_BODY
        length = self._headers.get("content-length", "")
        declared = int(length) if length.isascii() and length.isdecimal() else 0
        if declared > self._left and status < 300:
            raise self._too_large()
        self._on_head(min(declared, self._left))
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
                raise self._too_large()
            self._finish()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._headers = {}
        elif not self.received.done():
            self.reusable = self._parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        self.received.set_result(HttpAnswer(self._parser.get_status_code(), self._headers, b"".join(self._parts)))

    def _too_large(self) -> BadObject:
        return too_large(self._max_body)


class StorageConnection(asyncio.Protocol):
    """A connection to an object store, or to a proxy in front of it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer: IncomingAnswer | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    async def exchange(self, head: bytes, data: bytes, answer: IncomingAnswer) -> HttpAnswer:
        """Send a request and wait for its answer. If this raises `Unknown` or `BadObject`, the connection is closed."""
        self._answer = answer
        try:
            await self._send(head, data)
            found = await answer.received
        except BaseException:
            self.abort()
            if not answer.received.cancel() and not answer.received.cancelled():
                answer.received.exception()  # so that asyncio does not report an exception that was never retrieved
            raise
        self._answer = None
        if not answer.reusable:
            self.abort()
        return found

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS through a proxy's tunnel to `host`."""
        loop = asyncio.get_running_loop()
        upgraded = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if upgraded is None:
            raise ConnectionError("it was closed while encryption began")
        self._transport = upgraded

    def abort(self) -> None:
        """Close the connection at once, whatever it carries."""
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
                return  # the connection broke, or the answer came before everything was sent
            self._transport.write(view[start : start + PIECE_BYTES])

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # data without a request
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
