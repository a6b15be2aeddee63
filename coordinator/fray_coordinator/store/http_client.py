"""HTTP/1.1 to object stores: one attempt a request, which says whether anything of it was sent.

Connections are kept between requests, and go through the proxies that the environment names. Why none of the general
clients: importing aiohttp takes half as much processor time as a whole command on local files. obstore, which is quick
to import, knows no conditional deletes, keeps the server's clock to itself, and repeats and translates what fails.
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

CONNECT_TIMEOUT = 10.0
"""Seconds for a connection: Linux repeats a lost SYN after 1, 3 and 7 s."""
ANSWER_TIMEOUT = 20.0
"""Seconds for an answer, beside the time for its body: a third of a store's patience, so that it is asked again."""
MIN_BYTES_PER_SECOND = 1_000_000
"""A connection that carries less is given up, so that a larger body gets a longer time."""
MAX_CONNECTIONS = 64
"""As many as a pass makes requests at a time; the others wait for one of these."""
MAX_IDLE_SECONDS = 15.0
"""Seconds after which a connection is not used again: servers close those that are idle, S3 after some twenty."""


class HttpClient:
    """Connections to object stores, those that are idle included. It belongs to one event loop."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[tuple[float, StorageConnection]]] = {}
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes = b"", most: int = MAX_RECORD_BYTES
    ) -> HttpAnswer:
        """Send a request once; the answer, whatever its status. Redirects are not followed.

        Args:
            url: with everything escaped that has to be.
            most: bytes that the body of a success may have; that of another answer is cut.

        Raises:
            NotApplied: there is no connection.
            Unknown: the connection broke, or no answer came in time, or none that is HTTP.
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
                    answer = IncomingAnswer(most, lambda size: limit.reschedule(loop.time() + _seconds_for(size)))
                    found = await connection.exchange(head, data, answer)
            except TimeoutError as error:
                raise Unknown(f"{target.netloc} did not answer in time") from error
        if connection.usable:
            self._idle.setdefault(key, []).append((time.monotonic(), connection))
        return found

    def close(self) -> None:
        """Close the connections that are idle."""
        for _, connection in (kept for all_kept in self._idle.values() for kept in all_kept):
            connection.abort()
        self._idle.clear()

    def _idle_one(self, key: tuple[str, str]) -> StorageConnection | None:
        """The connection that was used last; those that are too old are closed."""
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
    except (OSError, ValueError) as error:  # a time-out among them, and names that are none
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
    """Have a proxy connect to `target`, and go on encrypted. Raises `OSError`."""
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
    """The head of a request. Raises `ValueError` for what would end a line."""
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header has no line breaks")
    return "\r\n".join([*lines, "", ""]).encode()


@cache
def _tls_context() -> ssl.SSLContext:
    """Trusts the system's authorities (certifi's, if there are none), and those of the bundle that is named."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and not (paths.capath and os.listdir(paths.capath)):
        import certifi

        context.load_verify_locations(certifi.where())
    for variable in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if bundle := os.environ.get(variable):
            context.load_verify_locations(bundle)
    return context
