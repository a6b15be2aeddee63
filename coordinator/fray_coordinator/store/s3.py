"""The backend for Amazon S3 and services with the same protocol.

AWS's own client libraries are not used: they retry failures, hide the status, and take twice a command's time to
import. The version is the ETag. Writing the same content again brings an old ETag back, which is why every body of a
record is unique.
"""

import asyncio
import hashlib
import socket
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree.ElementTree import Element, ParseError, fromstring

from fray_coordinator.clock import Clock
from fray_coordinator.per_process import PerLoop
from fray_coordinator.store.buckets import (
    MAX_MESSAGE_CHARACTERS,
    STALE_CREDENTIAL_CODES,
    BucketSettings,
    Location,
    ServerClock,
    bucket_address,
    checked_version,
    classify_status,
    no_such_bucket,
    parsing_answer,
)
from fray_coordinator.store.http_client import ANSWER_TIMEOUT, HttpAnswer, open_client
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    MAX_RECORD_BYTES,
    NOT_MODIFIED,
    ROWS_PER_REQUEST,
    Applied,
    AttemptFailed,
    BadObject,
    Expectation,
    Listed,
    NoBucket,
    NotApplied,
    NotModified,
    Object,
    PreconditionFailed,
    Refused,
    Version,
    max_bytes,
)
from fray_coordinator.store.s3_access import S3Access, find_access, query_text, signed_headers


class S3Row(NamedTuple):
    """An object in a listing, with the service's own texts."""

    name: str
    etag: str
    last_modified: str


class S3Page(NamedTuple):
    """A page of a listing. token: of the next page; "" if this is the last page."""

    rows: list[S3Row]
    token: str


def parse_page(body: bytes) -> S3Page:
    """Parse a page of a listing. Raises `ValueError`."""
    page = parse_xml(body, "ListBucketResult")
    decoded = unquote_plus if page.findtext("EncodingType") == "url" else str
    rows = [
        S3Row(decoded(_text(item, "Key")), item.findtext("ETag", ""), item.findtext("LastModified", ""))
        for item in page.iter("Contents")
    ]
    token = page.findtext("NextContinuationToken", "")
    if (count := page.findtext("KeyCount", "")).isdecimal() and int(count) > len(rows):
        raise ValueError(f"{count} objects are announced, and {len(rows)} are listed")
    more = page.findtext("IsTruncated", str(bool(token))).lower() == "true"
    if more and not token:
        raise ValueError("the next page is not named")
    return S3Page(rows, token if more else "")


def parse_xml(body: bytes, kind: str | None = None) -> Element:
    """Parse a document and strip namespaces from its tags. Raises `ValueError` if it is not XML, or not a `kind`."""
    try:
        root = fromstring(body)
    except (ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"it is no XML: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    if kind not in (None, root.tag):
        raise ValueError(f"it is no {kind}, but a {root.tag[:100]}")
    return root


def parse_error(body: bytes) -> tuple[str, str, str]:
    """The code, the message and the region in an error of S3; for anything else, such as a proxy's page, its text."""
    try:
        document = parse_xml(body, "Error")
    except ValueError:
        return "", body.decode(errors="replace"), ""
    return document.findtext("Code", ""), document.findtext("Message", ""), document.findtext("Region", "")


def _text(item: Element, name: str) -> str:
    text = item.findtext(name)
    if not text:
        raise ValueError(f"{name} is missing")
    return text


RIGHTS = {
    "GET": "s3:GetObject (and s3:ListBucket, without which an absent object looks forbidden)",
    "PUT": "s3:PutObject",
    "DELETE": "s3:DeleteObject",
    "LIST": "s3:ListBucket",
    "versioning": "s3:GetBucketVersioning",
    "lifecycle": "s3:GetLifecycleConfiguration",
    "object-lock": "s3:GetBucketObjectLockConfiguration",
}
WRONG_REGION_STATUSES = (301, 302, 307, 400)
"""Statuses with which S3 answers in the wrong region; the answer names the bucket's region."""
REGION_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "SignatureDoesNotMatch"}
)
"""Codes with which S3, and services like it, refuse requests that are signed for another region than the bucket's."""
THREAD_BYTES = 1024**2
"""Bytes from which a body's digest is computed in a thread; it takes milliseconds that would block the event loop."""


class S3Backend:
    """The S3 backend. `AWS_ENDPOINT_URL` selects another service instead."""

    scheme = "s3"
    local = False

    def __init__(self, bucket: str, prefix: str, clock: Clock) -> None:
        self._location = Location("s3", bucket, prefix)
        self.root = self._location.root
        self._server_clock = ServerClock(clock)
        self._signs_by_server = True
        self._region: str | None = None
        self._url = ""
        self._client = PerLoop(open_client)
        self._access = PerLoop(self._find_access)

    @property
    def address(self) -> str:
        return bucket_address(self.root, self._url, (".amazonaws.com", ".amazonaws.com.cn"))

    async def get(self, key: str) -> Object | None:
        answer = await self._object("GET", key)
        return None if answer.status == 404 else _object(answer)

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        answer = await self._object("GET", key, headers={"If-None-Match": version} if version else {})
        match answer.status:
            case 304:
                return NOT_MODIFIED
            case 404:
                return None
        return _object(answer)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        answer = await self._object("PUT", key, data, _precondition(expect))
        if answer.status == 404:
            raise PreconditionFailed(f"{key} is absent")
        with parsing_answer("PutObject"):
            return Applied(checked_version(answer.headers.get("etag")))

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._object("DELETE", key, headers=_precondition(expect))

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self.delete(key, expect)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        rows: list[Listed] = []
        query = {"list-type": "2", "encoding-type": "url", "prefix": self._location.name(prefix)}
        if after is not None:
            query["start-after"] = self._location.name(after)
        while limit is None or len(rows) < limit:
            wanted = ROWS_PER_REQUEST if limit is None else min(ROWS_PER_REQUEST, limit - len(rows))
            answer = await self._request("GET", "", {**query, "max-keys": str(wanted)}, right="LIST")
            with parsing_answer("ListObjectsV2"):
                page = parse_page(answer.body)
                names = [row for row in page.rows if self._location.holds(row.name, prefix)]
                found = [self._row(row, versions) for row in names]
                if page.token and page.token == query.get("continuation-token"):
                    raise ValueError("the next page is this one")
            rows += [row for row in found if row.key > (after or "")]
            if not page.token:
                break
            query["continuation-token"] = page.token
        return rows[:limit]

    async def settings(self) -> BucketSettings:
        """The bucket's own settings. Raises `AttemptFailed`."""
        unreadable: list[str] = []

        async def ask(what: str) -> Element:
            try:
                answer = await self._request("GET", "", {what: ""}, right=what, may_be_absent=True)
                with parsing_answer(f"the question about {what}"):
                    return Element("Nothing") if answer.status == 404 else parse_xml(answer.body)
            except NoBucket:
                raise
            except AttemptFailed:
                unreadable.append(what)
                return Element("Nothing")

        versioning = await ask("versioning")
        lifecycle = await ask("lifecycle")
        lock = await ask("object-lock")
        return BucketSettings(
            lifecycle_rules=len(lifecycle.findall("Rule")),
            retention=("an object lock with a default retention",) if lock.find("Rule") is not None else (),
            versioning=versioning.findtext("Status") == "Enabled",
            unreadable=tuple(unreadable),
        )

    def server_offset(self) -> float | None:
        return self._server_clock.offset()

    async def close(self) -> None:
        if (client := await self._client.take()) is not None:
            client.close()

    async def _object(
        self, method: str, key: str, data: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        path = f"/{quote(self._location.name(key), safe='/-_.~')}"
        try:
            return await self._request(
                method, path, {}, data, headers or {}, may_be_absent=True, max_body=max_bytes(key)
            )
        except BadObject as error:
            raise BadObject(f"{key}: {error}") from error

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
        right: str = "",
        may_be_absent: bool = False,
        max_body: int = MAX_RECORD_BYTES,
    ) -> HttpAnswer:
        """Send a request. Returns success, 304 and an object's 404; raises `AttemptFailed` for any other answer."""
        digest = hashlib.sha256(data) if len(data) < THREAD_BYTES else await asyncio.to_thread(hashlib.sha256, data)
        offset = (self._server_clock.offset() or 0.0) if self._signs_by_server else 0.0
        answer = await self._send(method, path, query, data, headers or {}, digest.hexdigest(), max_body, offset)
        code, message, region = _error(answer)
        if code == "RequestTimeTooSkewed":  # one of the clocks is wrong, or `Date` is that of a proxy
            offset = 0.0 if offset else self._server_clock.offset() or 0.0
            answer = await self._send(method, path, query, data, headers or {}, digest.hexdigest(), max_body, offset)
            code, message, region = _error(answer)
            if code != "RequestTimeTooSkewed":
                self._signs_by_server = offset != 0.0
        if answer.status in WRONG_REGION_STATUSES and region not in ("", (await self._access.get()).region):
            self._region = region
            await self._access.take()
            answer = await self._send(method, path, query, data, headers or {}, digest.hexdigest(), max_body, offset)
            code, message, _ = _error(answer)
        if code == "NoSuchBucket":
            raise no_such_bucket(self._location.bucket, "aws s3 mb s3://", "s3:CreateBucket")
        if code in STALE_CREDENTIAL_CODES:
            await self._access.take()  # there may be new ones by now
        if answer.status >= 300 and answer.status != 304 and not (answer.status == 404 and may_be_absent):
            after, text = answer.headers.get("retry-after"), f"{code} {message}"
            if code in REGION_CODES or answer.status == 301:
                remedy = (await self._access.get()).region_remedy
                if code == "SignatureDoesNotMatch":
                    remedy = f"the secret key or {remedy}"
                raise Refused(f"HTTP {answer.status}: {' '.join(text.split())[:MAX_MESSAGE_CHARACTERS]}; {remedy}")
            raise classify_status(answer.status, text, RIGHTS[right or method], after)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        data: bytes,
        headers: Mapping[str, str],
        digest: str,
        max_body: int,
        offset: float,
    ) -> HttpAnswer:
        """Sign a request and send it. offset: seconds that the clock of the signature is ahead of this host's."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                access = await self._access.get()
                keys = await access.keys()
        except TimeoutError as error:
            raise NotApplied("the server that gives credentials does not answer") from error
        client = await self._client.get()
        bucket, text = urlsplit(access.url), query_text(query)
        target = f"{bucket.path}{path}" or "/"
        sent = self._server_clock.wall()
        now = sent + offset
        signed = signed_headers(method, bucket.netloc, target, text, headers, digest, keys, access.region, now)
        try:
            answer = await client.request(
                method, f"{bucket.scheme}://{bucket.netloc}{target}?{text}", signed, data, max_body, access.ca_bundle
            )
        except NotApplied as error:
            if isinstance(error.__cause__, socket.gaierror) and f".{access.region}." in bucket.netloc:
                raise NotApplied(f"{error}; {access.region_remedy}") from error
            raise
        self._server_clock.learn(answer.headers.get("date"), sent)
        return answer

    async def _find_access(self) -> S3Access:
        access = await asyncio.to_thread(find_access, self._location.bucket, self._region)
        self._url = access.url
        return access

    def _row(self, row: S3Row, versions: bool) -> Listed:
        key = self._location.key(row.name)
        if not versions:
            return Listed(key)
        return Listed(key, checked_version(row.etag), datetime.fromisoformat(row.last_modified).timestamp())


def _precondition(expect: Expectation) -> dict[str, str]:
    if expect is ANY:
        return {}
    return {"If-None-Match": "*"} if expect is ABSENT else {"If-Match": str(expect)}


def _object(answer: HttpAnswer) -> Object:
    with parsing_answer("GetObject"):
        updated = parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
        return Object(answer.body, checked_version(answer.headers.get("etag")), updated)


def _error(answer: HttpAnswer) -> tuple[str, str, str]:
    """The code, the message and the bucket's region in an error answer; empty texts for a success."""
    if answer.status < 300:
        return "", "", ""
    code, message, region = parse_error(answer.body)
    return code, message, answer.headers.get("x-amz-bucket-region") or region
