"""Google Cloud Storage: gcsfs finds the credentials, the endpoint and the session; the requests are made here.

gcsfs's own request function repeats what fails, for longer than a lease lasts, and hides the status behind exception
classes, so conditional writes speak the JSON API directly. The version is the object's generation.
"""

import asyncio
import json
import os
import uuid
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote

from fray_coordinator.store.metering import ROWS_PER_REQUEST

# gcsfs reads this when it is imported; its zonal support asks for the bucket's layout before every operation.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import aiohttp
from gcsfs.core import GCSFileSystem
from yarl import URL

from fray_coordinator.clock import Clock
from fray_coordinator.per_loop import PerLoop
from fray_coordinator.store.buckets import (
    CONNECT_TIMEOUT,
    BucketSettings,
    Location,
    ServerClock,
    checked_version,
    classify_status,
    no_such_bucket,
    parsing_answer,
    read_body,
    request_timeout,
)
from fray_coordinator.store.gcs_token import AccessToken, token_failure
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    NOT_MODIFIED,
    Applied,
    AttemptFailed,
    BadObject,
    Expectation,
    Listed,
    NotApplied,
    NotModified,
    Object,
    Refused,
    Unknown,
    Version,
)
from fray_coordinator.store.key_rules import MAX_RECORD_BYTES, max_bytes
from fray_layouts.parsing import parse_json

RIGHTS = {
    "GET": "storage.objects.get",
    "POST": "storage.objects.create (and storage.objects.delete to overwrite)",
    "DELETE": "storage.objects.delete",
    "LIST": "storage.objects.list",
    "SETTINGS": "storage.buckets.get",
}


MAX_ERROR_BODY = 1024**2
"""Bytes that the answer to a request that failed may have."""


class HttpAnswer:
    """An answer as it came, whatever its status."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class GcsBackend:
    """The GCS backend. `STORAGE_EMULATOR_HOST` leads to an emulator instead."""

    scheme = "gs"
    local = False

    def __init__(self, bucket: str, prefix: str, clock: Clock) -> None:
        self._location = Location("gs", bucket, prefix)
        self.root = self._location.root
        self._server_clock = ServerClock(clock)
        self._clock = clock
        self._file_system = PerLoop(_connect)
        self._token = PerLoop(self._access_token)

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
            # startOffset includes the key itself, which is then one row too many.
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
        except Refused as error:
            return BucketSettings(unreadable=(str(error),))
        with parsing_answer("GET of the bucket"):
            return _settings(parse_json(answer.body))

    def server_offset(self) -> float | None:
        return self._server_clock.offset()

    async def close(self) -> None:
        if (file_system := await self._file_system.take()) is not None:
            await file_system.session.close()

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
        return await self._request(method, path, query, may_be_absent=True, most=max_bytes(key))

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        data: bytes = b"",
        headers: dict[str, str] | None = None,
        right: str = "",
        may_be_absent: bool = False,
        most: int = MAX_RECORD_BYTES,
    ) -> HttpAnswer:
        """Send a request. Returns success, 304 and the 404 of an object; raises `AttemptFailed` for everything else."""
        sent = self._server_clock.wall()
        try:
            answer = await self._send(method, path, query, data, await self._authorized(headers or {}), most)
        except BadObject as error:
            raise (BadObject if may_be_absent else Unknown)(f"{unquote(path)}: {error}") from error
        except AttemptFailed:
            raise
        except aiohttp.ClientConnectorError as error:
            raise NotApplied(f"no connection: {error}") from error
        except Exception as error:  # whatever the libraries raise
            raise Unknown(f"the connection broke: {error or type(error).__name__}") from error
        self._server_clock.learn(answer.headers.get("Date"), sent)
        if answer.status == 401 and (token := await self._token.get()) is not None:
            token.refused()
        if answer.status == 404 and b"bucket does not exist" in answer.body:
            raise no_such_bucket(self._location.bucket, "gcloud storage buckets create gs://", "storage.buckets.create")
        if answer.status >= 300 and answer.status != 304 and not (answer.status == 404 and may_be_absent):
            text = answer.body.decode(errors="replace")
            raise classify_status(answer.status, text, RIGHTS[right or method], answer.headers.get("Retry-After"))
        return answer

    async def _send(
        self, method: str, path: str, query: dict[str, str], data: bytes, headers: dict[str, str], most: int
    ) -> HttpAnswer:
        async with request_timeout(len(data)):
            file_system = await self._file_system.get()
            url = URL(f"{file_system.base.removesuffix('storage/v1/')}{path}", encoded=True)
            request = file_system.session.request(method, url, params=query, headers=headers, data=data or None)
            response = await request
        most = most if response.status < 300 else MAX_ERROR_BODY
        async with response, request_timeout(min(response.content_length or 0, most)):
            try:
                body = await read_body(response.content.read, response.content_length, most)
            except BadObject:
                if response.status < 300:
                    raise
                body = b"a long page"
            return HttpAnswer(response.status, response.headers, body)

    async def _authorized(self, headers: dict[str, str]) -> dict[str, str]:
        authorized = dict(headers)
        try:
            async with request_timeout():
                if (token := await self._token.get()) is not None:
                    await token.apply(authorized)
        except TimeoutError as error:
            raise NotApplied("the server that gives access tokens does not answer") from error
        return authorized

    async def _access_token(self) -> AccessToken | None:
        """The loop's access token; None for an emulator, which asks for none."""
        credentials = (await self._file_system.get()).credentials.credentials
        return None if credentials is None else AccessToken(credentials, self._clock)


async def _connect() -> GCSFileSystem:
    token = "anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None

    def find_credentials() -> GCSFileSystem:
        return GCSFileSystem(
            token=token,
            asynchronous=True,
            use_listings_cache=False,
            skip_instance_cache=True,
            session_kwargs={"timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)},
        )

    try:
        file_system = await asyncio.to_thread(find_credentials)
    except Exception as error:
        raise token_failure(error) from error
    if token is None and file_system.credentials.credentials is None:
        raise token_failure(LookupError("none were found"))
    await file_system._set_session()
    return file_system


def _precondition(expect: Expectation) -> dict[str, str]:
    if expect is ANY:
        return {}
    return {"ifGenerationMatch": "0" if expect is ABSENT else str(expect)}


def _object(answer: HttpAnswer) -> Object:
    with parsing_answer("GET"):
        updated = parsedate_to_datetime(answer.headers["Last-Modified"]).timestamp()
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
