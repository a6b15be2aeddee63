"""An HTTP/1.1 client for object stores: one attempt per request, which reports whether anything was sent.

It keeps connections between requests, and uses the proxies that the environment names. No general client fits:
importing aiohttp takes half as much processor time as a whole command on local files. obstore is quick to import, but
has no conditional deletes, hides the server's clock, and retries and translates failures itself.
"""

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Mapping
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit

from fray_coordinator.store.http_connection import HttpAnswer, IncomingAnswer, StorageConnection
from fray_coordinator.store.interface import NotApplied, Unknown
from fray_coordinator.store.key_rules import MAX_RECORD_BYTES
from fray_coordinator.variables import read_variable

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
        self._idle: dict[tuple[str, str], list[tuple[float, StorageConnection]]] = {}
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes = b"", max_body: int = MAX_RECORD_BYTES
    ) -> HttpAnswer:
        """Send a request once; returns the answer, whatever its status. Redirects are not followed.

        Args:
            url: properly escaped.
            max_body: largest body of a success, in bytes; the body of another answer is cut.

        Raises:
            NotApplied: there is no connection.
            Unknown: the connection broke, or no answer came in time, or the answer is not HTTP.
            BadObject: the body is too long.
        """
        target = urlsplit(url)
        proxy = _proxy_for(target)
        key = (f"{target.scheme}://{target.netloc}", proxy.geturl() if proxy else "")
        path = f"{target.path or '/'}?{target.query}" if target.query else target.path or "/"
        sent_headers = {"Host": target.netloc.rpartition("@")[2], "User-Agent": "fray", **headers}
        if data or method in ("POST", "PUT"):
            sent_headers["Content-Length"] = str(len(data))
        if proxy and target.scheme == "http":  # an encrypted connection goes through a tunnel instead
            path = f"http://{target.netloc}{path}"
            sent_headers |= _proxy_rights(proxy)
        head = _lines(f"{method} {path} HTTP/1.1", sent_headers)
        loop = asyncio.get_running_loop()
        async with self._places:
            try:
                async with asyncio.timeout(_seconds_for(len(data))) as limit:
                    connection = self._idle_one(key) or await _connected(target, proxy)
                    answer = IncomingAnswer(max_body, lambda size: limit.reschedule(loop.time() + _seconds_for(size)))
                    found = await connection.exchange(head, data, answer)
            except TimeoutError as error:
                raise Unknown(f"{target.netloc} did not answer in time") from error
        if connection.usable:
            self._idle.setdefault(key, []).append((time.monotonic(), connection))
        return found

    def close(self) -> None:
        """Close the idle connections."""
        for _, connection in (kept for all_kept in self._idle.values() for kept in all_kept):
            connection.abort()
        self._idle.clear()

    def _idle_one(self, key: tuple[str, str]) -> StorageConnection | None:
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


async def _connected(target: SplitResult, proxy: SplitResult | None) -> StorageConnection:
    """A new connection. Raises `NotApplied`."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            connection = await _opened(proxy or target)
            if proxy and target.scheme == "https":
                await _tunnel(connection, target, proxy)
            return connection
    except (OSError, ValueError) as error:  # including time-outs and malformed host names
        place = (proxy or target).netloc.rpartition("@")[2]
        raise NotApplied(f"no connection to {place}: {error or 'it does not answer'}") from error


async def _opened(place: SplitResult) -> StorageConnection:
    secure = place.scheme == "https"
    _, connection = await asyncio.get_running_loop().create_connection(
        StorageConnection,
        place.hostname or "",
        place.port or (443 if secure else 80),
        ssl=_tls_context() if secure else None,
        happy_eyeballs_delay=0.25,
    )
    return connection


async def _tunnel(connection: StorageConnection, target: SplitResult, proxy: SplitResult) -> None:
    """Make a proxy connect to `target`, and start TLS through it. Raises `OSError`."""
    place = f"{target.hostname}:{target.port or 443}"
    head = _lines(f"CONNECT {place} HTTP/1.1", {"Host": place, **_proxy_rights(proxy)})
    try:
        found = await connection.exchange(head, b"", IncomingAnswer(0, lambda size: None, head_only=True))
    except Unknown as error:
        raise ConnectionError(str(error)) from error
    if found.status != 200:
        connection.abort()
        raise ConnectionError(f"the proxy answered CONNECT {place} with HTTP {found.status}")
    await connection.start_tls(_tls_context(), target.hostname or "")


def _proxy_for(target: SplitResult) -> SplitResult | None:
    """The proxy that the environment names (HTTPS_PROXY, NO_PROXY and so on)."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass

    proxy = getproxies_environment().get(target.scheme, "")
    if not proxy or proxy_bypass(target.netloc.rpartition("@")[2]):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_rights(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _lines(first: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises `ValueError` if a line has a line break."""
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header has no line breaks")
    return "\r\n".join([*lines, "", ""]).encode()


@cache
def _tls_context() -> ssl.SSLContext:
    """A context that trusts the system's authorities (certifi's, if there are none) and those of a named bundle."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and not (paths.capath and os.listdir(paths.capath)):
        import certifi

        context.load_verify_locations(certifi.where())
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if bundle := read_variable(variable):
            context.load_verify_locations(bundle)
    return context
