"""Amazon S3 and what speaks its protocol: s3fs finds the credentials and makes the client; the calls are made here.

s3fs's own call repeats what fails and translates the status away, so its client is called directly. The version is the
ETag, which a later write of the same content brings back: every record's body is unique for that reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ProxyConnectionError,
    ResponseStreamingError,
    SSLError,
)
from botocore.parsers import ResponseParserError
from s3fs import S3FileSystem

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
    PreconditionFailed,
    Refused,
    Unknown,
    Version,
)
from fray_coordinator.store.key_rules import max_bytes
from fray_coordinator.store.metering import ROWS_PER_REQUEST

RIGHTS = {
    "get_object": "s3:GetObject (and s3:ListBucket, without which an absent object looks forbidden)",
    "put_object": "s3:PutObject",
    "delete_object": "s3:DeleteObject",
    "list_objects_v2": "s3:ListBucket",
}
MAX_CONNECTIONS = 64
"""As many as a pass makes requests at a time; botocore would queue them behind ten."""
BROKEN_CONNECTION_ERRORS = (HTTPClientError, IncompleteReadError, ResponseStreamingError, ResponseParserError)
"""What botocore says of connections that broke, and of answers that are none."""
NO_TIMEOUT = 3600.0
"""Seconds: `request_timeout` limits every call according to its size, the client's one limit for all must not."""


class S3Backend:
    """The S3 backend. `AWS_ENDPOINT_URL` leads to another service instead."""

    scheme = "s3"
    local = False

    def __init__(self, bucket: str, prefix: str, clock: Clock) -> None:
        self._location = Location("s3", bucket, prefix)
        self.root = self._location.root
        self._server_clock = ServerClock(clock)
        self._client = PerLoop(_connect)

    async def get(self, key: str) -> Object | None:
        return await self._read(key, await self._call("get_object", Key=self._location.name(key)))

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        condition = {"IfNoneMatch": version} if version else {}
        answer = await self._call("get_object", Key=self._location.name(key), **condition)
        return NOT_MODIFIED if _status(answer) == 304 else await self._read(key, answer)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        answer = await self._call("put_object", Key=self._location.name(key), Body=data, **_precondition(expect))
        if _status(answer) == 404:
            raise PreconditionFailed(f"{key} is absent")
        with parsing_answer("PutObject"):
            return Applied(checked_version(answer["ETag"]))

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._call("delete_object", Key=self._location.name(key), **_precondition(expect))

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self.delete(key, expect)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        rows: list[Listed] = []
        query: dict[str, Any] = {"Prefix": self._location.name(prefix)}
        if after is not None:
            query["StartAfter"] = self._location.name(after)
        more = True
        while more and (limit is None or len(rows) < limit):
            wanted = ROWS_PER_REQUEST if limit is None else min(ROWS_PER_REQUEST, limit - len(rows))
            page = await self._call("list_objects_v2", MaxKeys=wanted, **query)
            with parsing_answer("ListObjectsV2"):
                found = [item for item in page.get("Contents", []) if self._location.holds(item["Key"], prefix)]
                rows += [row for item in found if (row := self._row(item, versions)) and row.key > (after or "")]
                token = page.get("NextContinuationToken")
                more = page.get("IsTruncated", token is not None)
                if more and token in (None, query.get("ContinuationToken")):
                    raise ValueError("the next page is not named")
            query["ContinuationToken"] = token
        return rows[:limit]

    async def settings(self) -> BucketSettings:
        """The bucket's own settings. Raises `AttemptFailed`."""
        unreadable: list[str] = []

        async def ask(what: str) -> dict[str, Any]:
            try:
                return await self._call(f"get_{what}")
            except AttemptFailed:
                unreadable.append(what.replace("_", " "))
                return {}

        versioning = await ask("bucket_versioning")
        lifecycle = await ask("bucket_lifecycle_configuration")
        lock = await ask("object_lock_configuration")
        with parsing_answer("questions about the bucket"):
            return BucketSettings(
                lifecycle_rules=len(lifecycle.get("Rules", [])),
                retention=_retention(lock.get("ObjectLockConfiguration", {})),
                versioning=versioning.get("Status") == "Enabled",
                unreadable=tuple(unreadable),
            )

    def server_offset(self) -> float | None:
        return self._server_clock.offset()

    async def close(self) -> None:
        if (client := await self._client.take()) is not None:
            await client.close()

    async def _call(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Send a request. Returns success, 304 and 404; raises `AttemptFailed` for everything else."""
        sent = self._server_clock.wall()
        with _translated_errors():
            client = await self._client.get()
            try:
                async with request_timeout(len(arguments.get("Body", b""))):
                    answer: dict[str, Any] = await getattr(client, verb)(Bucket=self._location.bucket, **arguments)
            except ClientError as error:
                answer = error.response
        with parsing_answer(verb):
            status, headers = _status(answer), answer["ResponseMetadata"].get("HTTPHeaders", {})
            code, message = (str(answer.get("Error", {}).get(name, "")) for name in ("Code", "Message"))
        self._server_clock.learn(headers.get("date"), sent)
        if code == "NoSuchBucket":
            raise no_such_bucket(self._location.bucket, "aws s3 mb s3://", "s3:CreateBucket")
        if status >= 300 and status not in (304, 404):
            raise classify_status(
                status, f"{code} {message}", RIGHTS.get(verb, f"to {verb}"), headers.get("retry-after")
            )
        return answer

    async def _read(self, key: str, answer: dict[str, Any]) -> Object | None:
        if _status(answer) == 404:
            return None
        with parsing_answer("GetObject"):
            stream, size = answer["Body"], int(answer.get("ContentLength") or 0)
            version, updated = checked_version(answer["ETag"]), answer["LastModified"].timestamp()
        with _translated_errors():
            async with request_timeout(min(size, most := max_bytes(key))), stream:
                try:
                    return Object(await read_body(stream.read, size, most), version, updated)
                except BadObject as error:
                    raise BadObject(f"{key}: {error}") from error

    def _row(self, item: dict[str, Any], versions: bool) -> Listed:
        key = self._location.key(item["Key"])
        return Listed(key, checked_version(item["ETag"]), item["LastModified"].timestamp()) if versions else Listed(key)


async def _connect() -> Any:
    file_system = S3FileSystem(
        asynchronous=True,
        use_listings_cache=False,
        skip_instance_cache=True,
        config_kwargs={
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": MAX_CONNECTIONS,
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": NO_TIMEOUT,
        },
    )
    client = await file_system.set_session()
    client.meta.events.register("before-call.s3.HeadBucket", _redirect_no_further)
    return client


def _redirect_no_further(params: dict[str, Any], **_: Any) -> None:
    """botocore follows a redirect by asking the bucket for its region: an answer to that is not followed once more."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _precondition(expect: Expectation) -> dict[str, str]:
    if expect is ANY:
        return {}
    return {"IfNoneMatch": "*"} if expect is ABSENT else {"IfMatch": str(expect)}


def _retention(lock: dict[str, Any]) -> tuple[str, ...]:
    return ("an object lock with a default retention",) if "Rule" in lock else ()


def _status(answer: dict[str, Any]) -> int:
    status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
    return status


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn the errors of calls that got no answer into outcomes of the attempt."""
    try:
        yield
    except AttemptFailed:
        raise
    except (ConnectTimeoutError, ProxyConnectionError, SSLError) as error:
        raise NotApplied(f"no connection: {error}") from error
    except EndpointConnectionError as error:
        # aiobotocore says this both when it could not connect and when the connection broke under a request.
        never_sent = isinstance(error.kwargs["error"], aiohttp.ClientConnectorError)
        raise (NotApplied if never_sent else Unknown)(str(error)) from error
    except (*BROKEN_CONNECTION_ERRORS, aiohttp.ClientError, OSError) as error:
        raise Unknown(f"the connection broke: {error or type(error).__name__}") from error
    except BotoCoreError as error:
        text = f"{error}; `aws configure` and the AWS_* variables say where credentials come from"
        raise Refused(text, may_pass=True) from error
    except Exception as error:  # whatever the libraries raise
        raise Unknown(f"no answer that can be understood: {type(error).__name__}: {error}") from error
