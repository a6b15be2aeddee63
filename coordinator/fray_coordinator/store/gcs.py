"""Google Cloud Storage: gcsfs finds the credentials, the endpoint and the session; the requests are made here.

gcsfs's own request function repeats what fails, for longer than a lease lasts, and hides the status behind exception
classes, so conditional writes speak the JSON API directly. The version is the object's generation.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

# gcsfs reads this when it is imported; its zonal support asks for the bucket's layout before every operation.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import aiohttp
import google.auth.exceptions
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError
from yarl import URL

from fray_coordinator.clock import Clock
from fray_coordinator.store.api import (
    ABSENT,
    ANY,
    NOT_MODIFIED,
    Applied,
    AttemptFailed,
    Expectation,
    Listed,
    NotApplied,
    NotModified,
    Object,
    Refused,
    Unknown,
    Version,
)
from fray_coordinator.store.bucket import (
    CONNECT_SECONDS,
    PAGE,
    BucketSettings,
    Location,
    PerLoop,
    ServerClock,
    failure,
    in_time,
)

RIGHTS = {
    "GET": "storage.objects.get",
    "POST": "storage.objects.create (and storage.objects.delete to overwrite)",
    "DELETE": "storage.objects.delete",
    "LIST": "storage.objects.list",
    "SETTINGS": "storage.buckets.get",
}
REFRESH_CHECK = 60.0
"""Seconds between looks at the access token, which gcsfs renews when less than five minutes are left of it."""


class Answer:
    """An answer as it came, whatever its status."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class GcsBackend:
    """One attempt at objects in a GCS bucket. `STORAGE_EMULATOR_HOST` leads to an emulator instead."""

    scheme = "gs"
    local = False

    def __init__(self, bucket: str, prefix: str, clock: Clock) -> None:
        self._location = Location("gs", bucket, prefix)
        self.root = self._location.root
        self._server_clock = ServerClock(clock)
        self._clock = clock
        self._file_system = PerLoop(_connect, _disconnect)
        self._refresh_at = float("-inf")

    async def get(self, key: str) -> Object | None:
        answer = await self._object("GET", key, "download/", {"alt": "media"})
        return None if answer.status == 404 else _object(answer)

    async def get_if_changed(self, key: str, version: Version) -> Object | NotModified | None:
        answer = await self._object("GET", key, "download/", {"alt": "media", "ifGenerationNotMatch": version})
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
        written = answer.json()
        return Applied(str(written["generation"]), _time(written["updated"]))

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._object("DELETE", key, "", _precondition(expect))

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self.delete(key, expect)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        rows: list[Listed] = []
        token: str | None = ""
        while token is not None and (limit is None or len(rows) < limit):
            # startOffset includes the key itself, which is then one row too many.
            wanted = PAGE if limit is None else min(PAGE, limit - len(rows) + (after is not None))
            page = await self._page(prefix, after, wanted, versions, token)
            found = [self._row(item, versions) for item in page.get("items", [])]
            rows += [row for row in found if after is None or row.key > after]
            token = page.get("nextPageToken")
        return rows[:limit]

    async def settings(self) -> BucketSettings:
        """What the bucket's owner has set. Raises `AttemptFailed`."""
        try:
            answer = await self._request("GET", f"storage/v1/b/{self._location.bucket}", {}, right="SETTINGS")
        except Refused as error:
            return BucketSettings(unreadable=(str(error),))
        found = answer.json()
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

    def server_offset(self) -> float | None:
        return self._server_clock.offset()

    async def close(self) -> None:
        await self._file_system.close()

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
        found: dict[str, Any] = answer.json()
        return found

    def _row(self, item: dict[str, Any], versions: bool) -> Listed:
        key = self._location.key(item["name"])
        return Listed(key, item["generation"], _time(item["updated"])) if versions else Listed(key)

    async def _object(self, method: str, key: str, service: str, query: dict[str, str]) -> Answer:
        name = quote(self._location.name(key), safe="")
        path = f"{service}storage/v1/b/{self._location.bucket}/o/{name}"
        return await self._request(method, path, query, may_be_absent=True)

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        data: bytes = b"",
        headers: dict[str, str] | None = None,
        right: str = "",
        may_be_absent: bool = False,
    ) -> Answer:
        """One request. Returns success, 304 and the 404 of an object; raises `AttemptFailed` for everything else."""
        sent = self._server_clock.wall()
        try:
            answer = await self._send(method, path, query, data, dict(headers or {}))
        except (aiohttp.ClientConnectorError, google.auth.exceptions.TransportError) as error:
            raise NotApplied(f"no connection: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unknown(f"the connection broke: {error or type(error).__name__}") from error
        except (google.auth.exceptions.GoogleAuthError, HttpError) as error:
            raise _not_logged_in(error) from error
        self._server_clock.learn(answer.headers.get("Date"), sent)
        if answer.status == 404 and b"bucket does not exist" in answer.body:
            raise Refused(f"the bucket {self._location.bucket} does not exist")
        if answer.status >= 400 and not (answer.status == 404 and may_be_absent):
            text = answer.body.decode(errors="replace")
            raise failure(answer.status, text, RIGHTS[right or method], answer.headers.get("Retry-After"))
        return answer

    async def _send(
        self, method: str, path: str, query: dict[str, str], data: bytes, headers: dict[str, str]
    ) -> Answer:
        async with in_time(len(data)):
            file_system = await self._file_system.get()
            await self._refresh(file_system)
            file_system.credentials.apply(headers)
            url = URL(f"{file_system.base.removesuffix('storage/v1/')}{path}", encoded=True)
            request = file_system.session.request(method, url, params=query, headers=headers, data=data or None)
            response = await request
        async with response, in_time(response.content_length or 0):
            return Answer(response.status, response.headers, await response.read())

    async def _refresh(self, file_system: GCSFileSystem) -> None:
        """Renew the access token in a thread, so that no request finds it old and blocks the loop."""
        if self._clock.boottime() >= self._refresh_at:
            await asyncio.to_thread(file_system.credentials.maybe_refresh)
            self._refresh_at = self._clock.boottime() + REFRESH_CHECK


async def _connect() -> GCSFileSystem:
    def find_credentials() -> GCSFileSystem:
        return GCSFileSystem(
            token="anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None,
            asynchronous=True,
            use_listings_cache=False,
            skip_instance_cache=True,
            session_kwargs={"timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)},
        )

    file_system = await asyncio.to_thread(find_credentials)
    await file_system._set_session()
    return file_system


async def _disconnect(file_system: GCSFileSystem) -> None:
    await file_system.session.close()


def _precondition(expect: Expectation) -> dict[str, str]:
    if expect is ANY:
        return {}
    return {"ifGenerationMatch": "0" if expect is ABSENT else str(expect)}


def _object(answer: Answer) -> Object:
    updated = parsedate_to_datetime(answer.headers["Last-Modified"]).timestamp()
    return Object(answer.body, answer.headers["x-goog-generation"], updated)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _not_logged_in(error: Exception) -> AttemptFailed:
    return Refused(f"no valid credentials ({error}); run `gcloud auth application-default login`")
