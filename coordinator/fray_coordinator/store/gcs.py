"""The backend for Google Cloud Storage, over its JSON API, with the credentials that google-auth finds.

Google's own client libraries are not used: they retry failures for longer than a lease lasts, hide the status behind
exception classes, and take three times a command's time to import. The version is the object's generation.
"""

import asyncio
import json
import uuid
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote, urlencode

from fray_coordinator.clock import Clock
from fray_coordinator.per_process import PerLoop
from fray_coordinator.store.buckets import (
    BucketSettings,
    Location,
    ServerClock,
    bucket_address,
    checked_version,
    classify_status,
    no_such_bucket,
    parsing_answer,
)
from fray_coordinator.store.gcs_credentials import AccessToken, find_credentials
from fray_coordinator.store.http_client import ANSWER_TIMEOUT, HttpAnswer, open_client
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    MAX_RECORD_BYTES,
    NOT_MODIFIED,
    ROWS_PER_REQUEST,
    Applied,
    BadObject,
    Expectation,
    Listed,
    NoBucket,
    NotApplied,
    NotModified,
    Object,
    Refused,
    Unknown,
    Version,
    max_bytes,
)
from fray_layouts.parsing import parse_json
from fray_runtime.variables import read_variable

RIGHTS = {
    "GET": "storage.objects.get",
    "POST": "storage.objects.create (and storage.objects.delete to overwrite)",
    "DELETE": "storage.objects.delete",
    "LIST": "storage.objects.list",
    "SETTINGS": "storage.buckets.get",
}


class GcsBackend:
    """The GCS backend. `STORAGE_EMULATOR_HOST` selects an emulator instead."""

    scheme = "gs"
    local = False

    def __init__(self, bucket: str, prefix: str, clock: Clock) -> None:
        self._location = Location("gs", bucket, prefix)
        self.root = self._location.root
        self._server_clock = ServerClock(clock)
        self._clock = clock
        self._client = PerLoop(open_client)
        self._token = PerLoop(self._access_token)

    @property
    def address(self) -> str:
        return bucket_address(self.root, _endpoint(), (".googleapis.com",))

    async def get(self, key: str) -> Object | None:
        answer = await self._object("GET", key, "download/", {"alt": "media"})
        return None if answer.status == 404 else _object(answer)

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        condition = {"ifGenerationNotMatch": version} if version else {}
        answer = await self._object("GET", key, "download/", {"alt": "media", **condition})
        match answer.status:
            case 304:
                return NOT_MODIFIED
            case 404:
                return None
        return _object(answer)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        boundary = uuid.uuid4().hex
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
        head += json.dumps({"name": self._location.name(key)})
        head += f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        answer = await self._request(
            "POST",
            f"upload/storage/v1/b/{self._location.bucket}/o",
            {"uploadType": "multipart", "fields": "generation,updated", **_precondition(expect)},
            b"".join((head.encode(), data, f"\r\n--{boundary}--".encode())),
            {"Content-Type": f"multipart/related; boundary={boundary}"},
        )
        with parsing_answer("POST"):
            written = parse_json(answer.body)
            return Applied(checked_version(written["generation"]), _time(written["updated"]))

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._object("DELETE", key, "", _precondition(expect))

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self.delete(key, expect)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        rows: list[Listed] = []
        token: str | None = ""
        while token is not None and (limit is None or len(rows) < limit):
            # startOffset includes the key itself, which is one row too many.
            wanted = (
                ROWS_PER_REQUEST if limit is None else min(ROWS_PER_REQUEST, limit - len(rows) + (after is not None))
            )
            page = await self._page(prefix, after, wanted, versions, token)
            with parsing_answer("LIST"):
                names = [item for item in page.get("items", []) if self._location.holds(item["name"], prefix)]
                found = [self._row(item, versions) for item in names]
                before, token = token, page.get("nextPageToken") or None
                if token == before:
                    raise ValueError("the next page is this one")
            rows += [row for row in found if after is None or row.key > after]
        return rows[:limit]

    async def settings(self) -> BucketSettings:
        """The bucket's own settings. Raises `AttemptFailed`."""
        try:
            answer = await self._request("GET", f"storage/v1/b/{self._location.bucket}", {}, right="SETTINGS")
        except NoBucket:
            raise
        except Refused as error:
            return BucketSettings(unreadable=(str(error),))
        with parsing_answer("GET of the bucket"):
            return _settings(parse_json(answer.body))

    def server_offset(self) -> float | None:
        return self._server_clock.offset()

    async def close(self) -> None:
        if (client := await self._client.take()) is not None:
            client.close()

    async def _page(self, prefix: str, after: str | None, wanted: int, versions: bool, token: str) -> dict[str, Any]:
        query = {
            "prefix": self._location.name(prefix),
            "maxResults": str(wanted),
            "fields": f"nextPageToken,items({'name,generation,updated' if versions else 'name'})",
        }
        if after is not None:
            query["startOffset"] = self._location.name(after)
        if token:
            query["pageToken"] = token
        answer = await self._request("GET", f"storage/v1/b/{self._location.bucket}/o", query, right="LIST")
        with parsing_answer("LIST"):
            found: dict[str, Any] = dict(parse_json(answer.body))
            return found

    def _row(self, item: dict[str, Any], versions: bool) -> Listed:
        key = self._location.key(item["name"])
        return Listed(key, checked_version(item["generation"]), _time(item["updated"])) if versions else Listed(key)

    async def _object(self, method: str, key: str, service: str, query: dict[str, str]) -> HttpAnswer:
        name = quote(self._location.name(key), safe="")
        path = f"{service}storage/v1/b/{self._location.bucket}/o/{name}"
        return await self._request(method, path, query, may_be_absent=True, max_body=max_bytes(key))

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        data: bytes = b"",
        headers: dict[str, str] | None = None,
        right: str = "",
        may_be_absent: bool = False,
        max_body: int = MAX_RECORD_BYTES,
    ) -> HttpAnswer:
        """Send a request. Returns success, 304 and an object's 404; raises `AttemptFailed` for any other answer."""
        sent = self._server_clock.wall()
        url = f"{_endpoint()}/{path}?{urlencode(query)}"
        try:
            authorized = await self._authorized(headers or {})
            answer = await (await self._client.get()).request(method, url, authorized, data, max_body)
        except BadObject as error:
            raise (BadObject if may_be_absent else Unknown)(f"{unquote(path)}: {error}") from error
        self._server_clock.learn(answer.headers.get("date"), sent)
        if answer.status == 401 and (token := await self._token.get()) is not None:
            token.refused()
        if answer.status == 404 and b"bucket does not exist" in answer.body:
            raise no_such_bucket(self._location.bucket, "gcloud storage buckets create gs://", "storage.buckets.create")
        if answer.status >= 300 and answer.status != 304 and not (answer.status == 404 and may_be_absent):
            text = answer.body.decode(errors="replace")
            raise classify_status(answer.status, text, RIGHTS[right or method], answer.headers.get("retry-after"))
        return answer

    async def _authorized(self, headers: dict[str, str]) -> dict[str, str]:
        authorized = dict(headers)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                if (token := await self._token.get()) is not None:
                    await token.apply(authorized)
        except TimeoutError as error:
            raise NotApplied("the server that gives access tokens does not answer") from error
        return authorized

    async def _access_token(self) -> AccessToken | None:
        """The loop's access token; None for an emulator, which needs none."""
        if _emulator():
            return None
        return AccessToken(await asyncio.to_thread(find_credentials), self._clock)


def _emulator() -> str:
    """The address of an emulator; "" for the real service."""
    named = read_variable("STORAGE_EMULATOR_HOST") or ""
    return named if not named or "://" in named else f"http://{named}"


def _endpoint() -> str:
    return _emulator().rstrip("/") or "https://storage.googleapis.com"


def _precondition(expect: Expectation) -> dict[str, str]:
    if expect is ANY:
        return {}
    return {"ifGenerationMatch": "0" if expect is ABSENT else str(expect)}


def _object(answer: HttpAnswer) -> Object:
    with parsing_answer("GET"):
        updated = parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
        return Object(answer.body, checked_version(answer.headers["x-goog-generation"]), updated)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _settings(found: dict[str, Any]) -> BucketSettings:
    policy = found.get("retentionPolicy")
    retention = [f"a retention policy of {policy['retentionPeriod']} s"] if policy else []
    if found.get("defaultEventBasedHold"):
        retention.append("an event-based hold on every new object")
    return BucketSettings(
        soft_delete_days=int(found.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)) / 86400,
        lifecycle_rules=len(found.get("lifecycle", {}).get("rule", [])),
        retention=tuple(retention),
        versioning=bool(found.get("versioning", {}).get("enabled")),
    )
