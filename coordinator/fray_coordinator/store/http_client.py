"""An HTTP/1.1 client for object stores: one attempt per request, which reports whether anything was sent.

It keeps connections between requests, and uses the proxies that the environment names. No general client fits:
importing aiohttp takes half as much processor time as a whole command on local files. obstore is quick to import, but
has no conditional deletes, hides the server's clock, and retries and translates failures itself.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from fray_coordinator.store.http_connection import HttpAnswer, IncomingAnswer, StorageConnection
from fray_coordinator.store.http_route import Proxy, name_of, proxy_for, tls_context, tls_refusal
from fray_coordinator.store.interface import NotApplied, Refused, Unknown
from fray_coordinator.store.key_rules import MAX_RECORD_BYTES

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
