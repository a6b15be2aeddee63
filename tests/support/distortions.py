"""Answers of a storage server that are wrong although nothing fails: its times, versions and listings.

The proxy (fault_proxy.py) applies one at a time to what S3 and GCS servers answer. Requests are left as they are,
because they are signed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

from aiohttp import web

ROW = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
END = re.compile(rb"<(IsTruncated|NextContinuationToken|KeyCount)>[^<]*</\1>")
TIMES = re.compile(rb'(<LastModified>|"updated": ")([^"<]+)')
ETAG = re.compile(rb"<ETag>[^<]*</ETag>")
CONSTANT = '"d41d8cd98f00b204e9800998ecf8427e"'


class Distortion:
    """Leaves every answer as it is."""

    def own_answer(self, request: web.Request) -> web.Response | None:
        """An answer instead of the server's, which is then not asked."""
        return None

    def changed(self, request: web.Request, response: web.Response) -> web.Response:
        """The server's answer as the client sees it."""
        return response


@dataclass(frozen=True, slots=True)
class ClockOff(Distortion):
    """The server's clock is `seconds` ahead, in all its answers."""

    seconds: float

    def changed(self, request: web.Request, response: web.Response) -> web.Response:
        for name in {"Date", "Last-Modified"} & response.headers.keys():
            time = parsedate_to_datetime(response.headers[name]) + timedelta(seconds=self.seconds)
            response.headers[name] = format_datetime(time, usegmt=True)
        if page_of(request) or request.method == "POST":
            response.body = TIMES.sub(self._moved, _body(response))
        return response

    def _moved(self, found: re.Match[bytes]) -> bytes:
        time = datetime.fromisoformat(found[2].decode()) + timedelta(seconds=self.seconds)
        return found[1] + time.isoformat().encode()


@dataclass(frozen=True, slots=True)
class OneVersion(Distortion):
    """Every object has the same ETag in answers, while the server compares real ones, as behind a careless proxy."""

    def changed(self, request: web.Request, response: web.Response) -> web.Response:
        if "ETag" in response.headers:
            response.headers["ETag"] = CONSTANT
        if page_of(request):
            response.body = ETAG.sub(f"<ETag>{CONSTANT}</ETag>".encode(), _body(response))
        return response


@dataclass(frozen=True, slots=True)
class Shuffled(Distortion):
    """Listings are in no order."""

    rng: random.Random

    def changed(self, request: web.Request, response: web.Response) -> web.Response:
        if (read := page_of(request)) and response.status == 200:
            page = read(_body(response))
            self.rng.shuffle(page.rows)
            response.body = page.encoded()
        return response


@dataclass(frozen=True, slots=True)
class NoContinuation(Distortion):
    """A page has only the first half of its rows, and says that there are more, but not where."""

    def changed(self, request: web.Request, response: web.Response) -> web.Response:
        if (read := page_of(request)) and response.status == 200:
            page = read(_body(response))
            page.rows = page.rows[: len(page.rows) // 2]
            response.body = page.without_continuation()
        return response


@dataclass(slots=True)
class ShortPages(Distortion):
    """Listings come in pages of a few rows, however many were asked for."""

    size: int = 3
    _next: dict[str, bytes] = field(default_factory=dict)

    def own_answer(self, request: web.Request) -> web.Response | None:
        token = request.query.get("continuation-token") or request.query.get("pageToken")
        return web.Response(body=self._next[token]) if token in self._next else None

    def changed(self, request: web.Request, response: web.Response) -> web.Response:
        if (read := page_of(request)) and response.status == 200:
            last = read(_body(response))
            while len(last.rows) > self.size:
                kept = len(last.rows) - (len(last.rows) % self.size or self.size)
                token = f"short{len(self._next)}"
                earlier = read(last.encoded())
                last.rows, earlier.rows, earlier.token = last.rows[kept:], earlier.rows[:kept], token
                self._next[token] = last.encoded()
                last = earlier
            response.body = last.encoded()
        return response


class XmlPage:
    """A page of S3's listing. token: of the next page; "": this is the last one."""

    def __init__(self, body: bytes) -> None:
        self.rows: list[bytes] = ROW.findall(body)
        found = re.search(rb"<NextContinuationToken>([^<]*)<", body)
        self.token = found[1].decode() if found else ""
        self._around = END.sub(b"", ROW.sub(b"", body))

    def encoded(self) -> bytes:
        token = f"<NextContinuationToken>{self.token}</NextContinuationToken>" if self.token else ""
        return self._with(f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{token}")

    def without_continuation(self) -> bytes:
        return self._with("<IsTruncated>true</IsTruncated>")

    def _with(self, end: str) -> bytes:
        inner = b"".join([*self.rows, f"<KeyCount>{len(self.rows)}</KeyCount>{end}".encode()])
        return self._around.replace(b"</ListBucketResult>", inner + b"</ListBucketResult>")


class JsonPage:
    """A page of GCS's listing; as `XmlPage`."""

    def __init__(self, body: bytes) -> None:
        self._page = json.loads(body)
        self.rows: list[object] = self._page.get("items", [])
        self.token: str = self._page.get("nextPageToken", "")

    def encoded(self) -> bytes:
        more = {"nextPageToken": self.token} if self.token else {}
        return json.dumps({**self._page, "items": self.rows, "nextPageToken": None, **more}).encode()

    def without_continuation(self) -> bytes:
        """GCS has no word for that; the answer ends in the middle instead."""
        return self.encoded()[:-2]


def page_of(request: web.Request) -> Callable[[bytes], XmlPage | JsonPage] | None:
    """What reads the answer if the request is for a listing."""
    if request.method != "GET":
        return None
    if "list-type" in request.query:
        return XmlPage
    return JsonPage if request.path.startswith("/storage/v1/b/") and request.path.endswith("/o") else None


def _body(response: web.Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body
