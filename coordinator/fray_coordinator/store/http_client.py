"""An HTTP/1.1 client for object stores: one attempt per request, which reports whether anything was sent.

It keeps connections between requests, of which each carries one at a time (httptools parses the answer), and uses the
proxies that the environment names. No general client fits: importing aiohttp takes half as much processor time as a
whole command on local files. obstore is quick to import, but has no conditional deletes, hides the server's clock, and
retries and translates failures itself.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import SplitResult, urlsplit

from httptools import HttpParserError, HttpResponseParser

from fray_coordinator.store.http_route import Proxy, name_of, proxy_for, tls_context, tls_refusal
from fray_coordinator.store.interface import (
    MAX_RECORD_BYTES,
    AttemptFailed,
    BadObject,
    NotApplied,
    Refused,
    Unknown,
    too_large,
)

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


CONNECT_TIMEOUT = 10.0
"""Seconds to connect: Linux repeats a lost SYN after 1, 3 and 7 s."""
ANSWER_TIMEOUT = 20.0
"""Seconds to wait for an answer without its body: a third of the store's patience, so that there are repetitions."""
MIN_BYTES_PER_SECOND = 1_000_000
"""Slowest accepted transfer; each megabyte of a body adds a second to the time limit."""
MAX_CONNECTIONS = 64
"""Connections at a time: as many as a pass makes requests at a time; further requests wait for one of them."""
MAX_IDLE_SECONDS = 15.0
"""Idle seconds after which a connection is not used again: servers close idle ones, S3 after some twenty seconds."""


class HttpClient:
    """Connections to object stores, including idle ones. It belongs to one event loop."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str, str], list[tuple[float, StorageConnection]]] = {}
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: bytes = b"",
        max_body: int = MAX_RECORD_BYTES,
        ca_bundle: str = "",
    ) -> HttpAnswer:
        """Send a request once; returns the answer, whatever its status. Redirects are not followed.

        Args:
            url: properly escaped.
            max_body: largest body of a success, in bytes; the body of another answer is cut.
            ca_bundle: a file with further certificate authorities, which a profile names.

        Raises:
            NotApplied: there is no connection.
            Refused: there can be none: the certificate is not trusted, or the proxy refuses, or a setting is wrong.
            Unknown: the connection broke, or no answer came in time, or the answer is not HTTP.
            BadObject: the body is too long.
        """
        target = urlsplit(url)
        proxy = proxy_for(target)
        key = (f"{target.scheme}://{target.netloc}", proxy.url.geturl() if proxy else "", ca_bundle)
        path = f"{target.path or '/'}?{target.query}" if target.query else target.path or "/"
        sent_headers = {"Host": name_of(target), "User-Agent": "fray", **headers}
        if data or method in ("POST", "PUT"):
            sent_headers["Content-Length"] = str(len(data))
        if proxy and target.scheme == "http":  # an encrypted connection goes through a tunnel instead
            path = f"http://{target.netloc}{path}"
            sent_headers |= proxy.rights
        head = _lines(f"{method} {path} HTTP/1.1", sent_headers)
        loop = asyncio.get_running_loop()
        async with self._places:
            try:
                async with asyncio.timeout(_seconds_for(len(data))) as limit:
                    connection = self._idle_one(key) or await _connected(target, proxy, ca_bundle)
                    answer = IncomingAnswer(max_body, lambda size: limit.reschedule(loop.time() + _seconds_for(size)))
                    found = await connection.exchange(head, data, answer)
            except TimeoutError as error:
                raise Unknown(f"{target.netloc} did not answer in time") from error
        if connection.usable:
            self._idle.setdefault(key, []).append((time.monotonic(), connection))
        if proxy and found.status == 407 and (refusal := proxy.refusal(found.status)):
            raise refusal
        return found

    def close(self) -> None:
        """Close the idle connections."""
        for _, connection in (kept for all_kept in self._idle.values() for kept in all_kept):
            connection.abort()
        self._idle.clear()

    def _idle_one(self, key: tuple[str, str, str]) -> StorageConnection | None:
        """The most recently used idle connection; connections that are too old are closed."""
        kept = self._idle.get(key, [])
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        while kept and (kept[0][0] < oldest or not kept[0][1].usable):
            kept.pop(0)[1].abort()
        while kept:
            connection = kept.pop()[1]
            if connection.usable:
                return connection
        return None


async def open_client() -> HttpClient:
    """A client of the running loop."""
    return HttpClient()


def _seconds_for(size: int) -> float:
    """The time limit for a request, or for the rest of an answer, with `size` bytes."""
    return ANSWER_TIMEOUT + size / MIN_BYTES_PER_SECOND


async def _connected(target: SplitResult, proxy: Proxy | None, ca_bundle: str) -> StorageConnection:
    """A new connection. Raises `NotApplied`; `Refused` if a repetition does not help."""
    place = f"the proxy {name_of(proxy.url)} of {proxy.variable}" if proxy else name_of(target)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            connection = await _opened(proxy.url if proxy else target, ca_bundle)
            if proxy and target.scheme == "https":
                await _tunnel(connection, target, proxy)
                place = f"{name_of(target)}, through {place}"
                await connection.start_tls(tls_context(ca_bundle), target.hostname or "")
            return connection
    except OSError as error:  # including time-outs, and all of TLS
        if isinstance(error, ssl.SSLError) and (refusal := tls_refusal(error, place)):
            raise refusal from error
        raise NotApplied(f"no connection to {place}: {error or 'it does not answer'}") from error
    except ValueError as error:  # a port that is no number, a host's name that cannot be one
        raise Refused(f"{place} is no address ({error}); correct the endpoint") from error


async def _opened(place: SplitResult, ca_bundle: str) -> StorageConnection:
    secure = place.scheme == "https"
    _, connection = await asyncio.get_running_loop().create_connection(
        StorageConnection,
        place.hostname or "",
        place.port or (443 if secure else 80),
        ssl=tls_context(ca_bundle) if secure else None,
        happy_eyeballs_delay=0.25,
    )
    return connection


async def _tunnel(connection: StorageConnection, target: SplitResult, proxy: Proxy) -> None:
    """Make a proxy connect to `target`. Raises `OSError`; `Refused` if the proxy refuses for good."""
    host = target.hostname or ""
    place = f"{f'[{host}]' if ':' in host else host}:{target.port or 443}"
    head = _lines(f"CONNECT {place} HTTP/1.1", {"Host": place, **proxy.rights})
    try:
        found = await connection.exchange(head, b"", IncomingAnswer(0, lambda size: None, head_only=True))
    except Unknown as error:
        raise ConnectionError(str(error)) from error
    if found.status != 200:
        connection.abort()
        if refusal := proxy.refusal(found.status):
            raise refusal
        raise ConnectionError(f"it answered CONNECT {place} with HTTP {found.status}")


def _lines(first: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises `ValueError` if a line has a line break."""
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header has no line breaks")
    return "\r\n".join([*lines, "", ""]).encode()
