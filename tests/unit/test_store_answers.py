"""Answers that no server should give: pages of proxies, missing headers, and unknown features."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web

from fray_coordinator.clock import SystemClock
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    MAX_RECORD_BYTES,
    AttemptFailed,
    BadObject,
    Listed,
    Object,
    StoreBackend,
    Unknown,
)
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.probe import probe
from fray_coordinator.store.s3 import parse_page
from tests.support.servers import AWS, moto
from tests.support.serving import serving

DATE = {"Date": "Sun, 22 Nov 2026 02:33:01 GMT"}
MODIFIED = {**DATE, "Last-Modified": "Sun, 22 Nov 2026 02:33:01 GMT"}
PAGE = "<html><body>Sign in to the guests' network</body></html>"
LISTING = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{}</ListBucketResult>'
ROW = "<Contents><Key>{}</Key><ETag>v</ETag><LastModified>2026-11-22T02:33:01Z</LastModified></Contents>"
MORE = "<IsTruncated>true</IsTruncated><NextContinuationToken>here</NextContinuationToken>"
ERROR = "<Error><Code>InternalError</Code><Message>We are sorry</Message></Error>"

Answer = tuple[int, dict[str, str], str | bytes]

ODD: list[Answer] = [
    (200, {}, ""),
    (200, DATE, PAGE),
    (200, {**DATE, "Content-Type": "text/html"}, PAGE),
    (200, {**DATE, "x-goog-generation": "7", "ETag": "v"}, "no Last-Modified"),
    (200, MODIFIED, "no version"),
    (200, {**MODIFIED, "x-goog-generation": "", "ETag": ""}, "an empty version"),
    (200, {**DATE, "Last-Modified": "yesterday", "x-goog-generation": "7", "ETag": "v"}, "an odd time"),
    (200, DATE, b"\xff\xfe\x00"),
    (200, DATE, "[1, 2]"),
    (200, DATE, "null"),
    (200, DATE, "{}"),
    (200, DATE, '{"items": 7}'),
    (200, DATE, '{"items": [{"size": 1}]}'),
    (200, DATE, '{"items": [{"name": null}]}'),
    (200, DATE, '{"items": [{"name": "root/a", "generation": 7, "updated": "soon"}]}'),
    (200, DATE, '{"items": [], "nextPageToken": "here"}'),
    (200, DATE, '{"generation": "7"}'),
    (200, DATE, '{"generation": null, "updated": "2026-11-22T02:33:01Z"}'),
    (200, DATE, '{"retentionPolicy": {}, "lifecycle": 7}'),
    (200, DATE, "[" * 100_000),
    (200, DATE, ERROR),
    (200, DATE, LISTING.format(MORE)),
    (200, DATE, LISTING.format("<IsTruncated>true</IsTruncated>")),
    (200, DATE, LISTING.format("<Contents><Size>7</Size></Contents>")),
    (200, DATE, LISTING.format("<Contents><Key>root/a</Key><LastModified>soon</LastModified></Contents>")),
    (204, {}, ""),
    (206, DATE, "a part"),
    (302, {**DATE, "Location": "/login"}, ""),
    (307, DATE, ""),
    (400, DATE, PAGE),
    (407, {}, PAGE),
    (418, {}, b"\xff\xfe"),
    (500, {"Date": "long ago"}, b"\xff\xfe"),
    (503, {"Retry-After": "next week"}, PAGE),
    (599, {}, "{"),
]


@pytest.fixture(params=["gs", "s3"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[Answer]]]:
    """A root, and its server's answers, of which the last is repeated for ever."""
    answers: list[Answer] = []

    async def answer(asked: web.Request) -> web.Response:
        await asked.read()
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if asked.path == "/login":
            status, headers, body = 200, {}, PAGE
        response = web.Response(status=status, headers=headers, body=body if isinstance(body, bytes) else body.encode())
        if headers.get("Transfer-Encoding"):
            response.enable_chunked_encoding()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with serving(app) as server:
        for variable, value in AWS.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv({"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}[request.param], server.url)
        yield f"{request.param}://bucket/root", answers


async def asked(root: str, act: Callable[[StoreBackend], Awaitable[Any]]) -> Any:
    backend = open_backend(root, SystemClock())
    try:
        async with asyncio.timeout(60):
            return await act(backend)
    finally:
        await backend.close()


VERBS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "get": lambda backend: backend.get("key"),
    "get_if_changed": lambda backend: backend.get_if_changed("key", "v"),
    "put": lambda backend: backend.put("key", b"data", ABSENT),
    "delete": lambda backend: backend.delete("key", ANY),
    "list": lambda backend: backend.list("prefix/", None, None, False),
    "list with versions": lambda backend: backend.list("", "a", 5, True),
    "settings": lambda backend: backend.settings(),
}


def test_no_answer_is_anything_but_a_result_or_a_failed_attempt(served: tuple[str, list[Answer]]) -> None:
    root, answers = served

    async def main(backend: StoreBackend) -> None:
        for number, odd in enumerate(ODD):
            for verb in VERBS if number % 6 == 0 else ("get", "put", "list with versions"):
                answers[:] = [odd]
                with suppress(AttemptFailed):
                    await VERBS[verb](backend)

    asyncio.run(asked(root, main))


@pytest.mark.parametrize("odd", ODD[:7], ids=str)
def test_an_answer_that_is_no_object_is_not_taken_for_one(served: tuple[str, list[Answer]], odd: Answer) -> None:
    root, answers = served
    answers.append(odd)
    with pytest.raises(Unknown):
        asyncio.run(asked(root, VERBS["get"]))


def test_a_page_that_lacks_objects_which_it_announces_is_no_page() -> None:
    with pytest.raises(ValueError, match="2 objects are announced, and 1 are listed"):
        parse_page(LISTING.format(f"<KeyCount>2</KeyCount>{ROW.format('root/a')}").encode())


def test_a_redirect_that_leads_nowhere_is_followed_once(served: tuple[str, list[Answer]]) -> None:
    """botocore asks the bucket for its region, and would ask again for the region of the server that answers."""
    root, answers = served
    answers[:] = [(307, DATE, "")] * 20
    with pytest.raises(AttemptFailed):
        asyncio.run(asked(root, VERBS["list"]))
    assert len(answers) >= 18


def test_names_beside_the_prefix_are_not_listed(served: tuple[str, list[Answer]]) -> None:
    root, answers = served
    names = ["other/a", "root/a", "root/prefix/a", "root/prefix/b", "rootprefix/c"]
    items = ", ".join(f'{{"name": "{name}"}}' for name in names)
    gcs, s3 = f'{{"items": [{items}]}}', LISTING.format("".join(ROW.format(name) for name in names))
    answers.append((200, {**DATE, "Content-Type": "application/xml"}, gcs if root.startswith("gs") else s3))
    assert asyncio.run(asked(root, VERBS["list"])) == [Listed("prefix/a"), Listed("prefix/b")]


def test_an_object_is_read_whose_server_tells_no_length(served: tuple[str, list[Answer]]) -> None:
    root, answers = served
    answers.append((200, {**MODIFIED, "x-goog-generation": "7", "ETag": "v"}, "data"))
    found = asyncio.run(asked(root, VERBS["get"]))
    assert isinstance(found, Object)
    assert found.data == b"data"


@pytest.mark.slow
def test_doctor_on_a_server_that_does_not_say_whether_a_listing_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    import aiohttp

    async def pass_on(request: web.Request) -> web.Response:
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            url, body = f"{behind.url}{request.raw_path}", await request.read()
            headers = {name: value for name, value in request.headers.items() if name != "Transfer-Encoding"}
            async with session.request(request.method, url, data=body, headers=headers) as answer:
                found = (await answer.read()).replace(b"<IsTruncated>false</IsTruncated>", b"")
                kept = {n: v for n, v in answer.headers.items() if n.lower() in ("date", "etag", "last-modified")}
                return web.Response(status=answer.status, headers=kept, body=found)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pass_on)
    with moto() as behind, serving(app) as front:
        for variable, value in {**AWS, "AWS_ENDPOINT_URL": front.url}.items():
            monkeypatch.setenv(variable, value)
        findings = asyncio.run(probe("s3://bucket/doctor"))
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert "listings are complete and in order" in [finding.what for finding in findings]


@pytest.mark.parametrize("told", [True, False], ids=["its length is told", "its length is not told"])
def test_an_object_that_is_too_large_for_its_name_is_not_read(served: tuple[str, list[Answer]], told: bool) -> None:
    root, answers = served
    headers = {**MODIFIED, "x-goog-generation": "7", "ETag": "v", **({} if told else {"Transfer-Encoding": "chunked"})}
    answers.append((200, headers, bytes(MAX_RECORD_BYTES + 1)))
    with pytest.raises(BadObject, match=rf"jobs/x\.json: .*more than the {MAX_RECORD_BYTES} bytes"):
        asyncio.run(asked(root, lambda backend: backend.get("jobs/x.json")))
    found = asyncio.run(asked(root, lambda backend: backend.get("work/x/1/0/result")))
    assert found is not None
    assert len(found.data) == MAX_RECORD_BYTES + 1


def test_a_long_page_of_a_broken_server_says_nothing_of_the_object(served: tuple[str, list[Answer]]) -> None:
    root, answers = served
    answers.append((500, DATE, bytes(2 * 1024**2)))
    with pytest.raises(Unknown, match="HTTP 500"):
        asyncio.run(asked(root, VERBS["get"]))
