"""S3 without its libraries: signatures, the place of a bucket, the choice of keys, and buckets in other regions."""

from __future__ import annotations

import asyncio
import calendar
import hashlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import botocore.auth
import pytest
from aiohttp import web
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from fray_coordinator.clock import SystemClock
from fray_coordinator.store.interface import ABSENT, ANY, Applied, NotApplied, Object, Refused
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.s3 import S3Backend
from fray_coordinator.store.s3_access import (
    S3Keys,
    botocore_access,
    find_access,
    plain_access,
    query_text,
    signed_headers,
)
from tests.support.servers import AWS
from tests.support.serving import Served, serving

EMPTY = hashlib.sha256(b"").hexdigest()
EXAMPLE = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "payload", "signature"),
    [
        (
            "GET",
            "/test.txt",
            {},
            {"Range": "bytes=0-9"},
            EMPTY,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            {},
            {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            hashlib.sha256(b"Welcome to Amazon S3.").hexdigest(),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        ("GET", "/", {"lifecycle": ""}, {}, EMPTY, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            "GET",
            "/",
            {"prefix": "J", "max-keys": "2"},
            {},
            EMPTY,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_the_examples_of_amazons_documentation(
    method: str, path: str, query: dict[str, str], headers: dict[str, str], payload: str, signature: str
) -> None:
    now = calendar.timegm((2013, 5, 24, 0, 0, 0))
    host = "examplebucket.s3.amazonaws.com"
    signed = signed_headers(method, host, path, query_text(query), headers, payload, EXAMPLE, "us-east-1", now)
    assert signed["Authorization"].endswith(f"Signature={signature}")


def test_signatures_are_botocores(monkeypatch: pytest.MonkeyPatch) -> None:
    """For keys that expire, and with every character that a key of an object may hold."""
    now = calendar.timegm((2026, 11, 22, 2, 33, 1))
    keys = S3Keys("access", "secret", "token")
    path, query = "/prefix/a%20b%2Bc/%C3%A9~%27%28%29", query_text({"prefix": "a b/é+&=~*'", "start-after": "/"})
    conditions = {"If-Match": '"etag  with   spaces"'}
    ours = signed_headers("PUT", "host:9000", path, query, conditions, EMPTY, keys, "eu-north-1", now)
    request = AWSRequest("PUT", f"http://host:9000{path}?{query}", conditions)
    request.context.update(payload_signing_enabled=True, timestamp="20261122T023301Z")
    auth = botocore.auth.S3SigV4Auth(Credentials("access", "secret", "token"), "s3", "eu-north-1")
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda **_: datetime(2026, 11, 22, 2, 33, 1))
    auth.add_auth(request)
    assert ours["Authorization"] == request.headers["Authorization"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without files of AWS, in an environment without its variables."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path


def prepare(home: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], config: str, keys: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (home / ".aws/config").write_text(config)
    (home / ".aws/credentials").write_text(keys)


PAIR = "aws_access_key_id = {0}\naws_secret_access_key = {0}-secret\n"
KEYS = f"[default]\n{PAIR.format('mine')}[other]\n{PAIR.format('others')}aws_session_token = t\n"
ENV = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}

PLAIN: list[tuple[str, dict[str, str], str, str]] = [
    ("bucket", {**ENV, "AWS_DEFAULT_REGION": "eu-west-1"}, "", KEYS),
    ("bucket.with.dots", ENV, "[default]\nregion = us-gov-west-1\n", ""),
    ("bucket", {}, "[default]\nregion = cn-north-1\noutput = json\n", KEYS),
    ("bucket", {"AWS_PROFILE": "other"}, "[profile other]\nendpoint_url = http://127.0.0.1:9/base/\n", KEYS),
    ("bucket", {"AWS_ENDPOINT_URL": "http://here:1", "AWS_ENDPOINT_URL_S3": "https://there"}, "", KEYS),
]


@pytest.mark.parametrize(("bucket", "variables", "config", "keys"), PLAIN)
def test_plain_settings_mean_the_same_as_to_botocore(
    home: Path, monkeypatch: pytest.MonkeyPatch, bucket: str, variables: dict[str, str], config: str, keys: str
) -> None:
    prepare(home, monkeypatch, variables, config, keys)
    ours, theirs = plain_access(bucket, None, os.environ), botocore_access(bucket, None)
    assert ours is not None
    assert (ours.url, ours.region) == (theirs.url, theirs.region)
    assert asyncio.run(ours.keys()) == asyncio.run(theirs.keys())


@pytest.mark.parametrize(
    ("variables", "config", "keys"),
    [
        ({}, "", ""),
        ({"AWS_ACCESS_KEY_ID": "half"}, "", KEYS),
        ({"AWS_PROFILE": "nobody"}, "", KEYS),
        ({}, "[default]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = other\n", KEYS),
        ({}, "[default]\nsso_session = s\n", ""),
        ({}, "[default]\ns3 =\n  addressing_style = virtual\n", KEYS),
        ({}, "[default]\nservices = mine\n", KEYS),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "", KEYS),
        ({"AWS_REGION": "us-iso-east-1"}, "", KEYS),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "", KEYS),
        ({}, "[default\nbroken", KEYS),
    ],
)
def test_other_credentials_are_left_to_botocore(
    home: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], config: str, keys: str
) -> None:
    prepare(home, monkeypatch, variables, config, keys)
    assert plain_access("bucket", None, os.environ) is None


def test_keys_that_a_program_gives_are_renewed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = home / "give.py"
    program.write_text(
        "import json, uuid\n"
        "given = {'Version': 1, 'SecretAccessKey': 's', 'SessionToken': 't', 'Expiration': '2099-01-01T00:00:00Z'}\n"
        "print(json.dumps({**given, 'AccessKeyId': uuid.uuid4().hex}))"
    )
    config = f"[default]\ncredential_process = {sys.executable} {program}\nregion = eu-west-1\n"
    prepare(home, monkeypatch, {}, config, "")
    access = find_access("bucket", None)
    assert (access.url, access.region) == ("https://bucket.s3.eu-west-1.amazonaws.com", "eu-west-1")
    first = asyncio.run(access.keys())
    assert (first.secret, first.token) == ("s", "t")
    assert asyncio.run(access.keys()) == first
    access.credentials._expiry_time = access.credentials._expiry_time.replace(year=2020)
    assert asyncio.run(access.keys()).access != first.access


def test_the_error_for_missing_keys_says_where_they_come_from(home: Path) -> None:
    with pytest.raises(Refused, match=r"Unable to locate credentials; `aws configure`") as refused:
        find_access("bucket", None)
    assert refused.value.may_pass
    with pytest.raises(Refused, match="directory bucket"):
        find_access("bucket--use1-az4--x-s3", None)


def test_a_server_of_credentials_that_is_away_is_an_outage(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/keys")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.RETRY_ATTEMPTS", 1)
    with pytest.raises(Refused, match="credentials"):
        find_access("bucket", None)


@contextmanager
def answered_by(answer: Callable[[web.Request], Awaitable[web.Response]]) -> Iterator[Served]:
    """A server that gives this answer to every request."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with serving(app) as server:
        yield server


def signed_for(request: web.Request) -> str:
    """The access key and the region of a request."""
    key, _, region, *_ = request.headers["Authorization"].partition("Credential=")[2].split("/")
    return f"{key} {region}"


@pytest.mark.parametrize("how", ["a header", "an error"])
def test_a_bucket_in_another_region_is_found_there(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    asked: list[str] = []
    error = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region></Error>"

    async def answer(request: web.Request) -> web.Response:
        asked.append(signed_for(request))
        if asked[-1].endswith("eu-central-1"):
            return web.Response(body=b"data", headers={"ETag": "v", "Last-Modified": "Sun, 22 Nov 2026 02:33:01 GMT"})
        if how == "an error":
            return web.Response(status=400, text=error)
        return web.Response(status=301, headers={"x-amz-bucket-region": "eu-central-1"})

    async def main() -> None:
        backend = S3Backend("bucket", "root", SystemClock())
        for _ in range(2):
            assert isinstance(await backend.get("key"), Object)
        await backend.close()

    with answered_by(answer) as server:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        asyncio.run(main())
    assert asked == ["test us-east-1", "test eu-central-1", "test eu-central-1"]


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (400, "AuthorizationHeaderMalformed", "the region may be wrong"),
        (400, "IllegalLocationConstraintException", "the region may be wrong"),
        (301, "PermanentRedirect", "the region may be wrong"),
        (403, "SignatureDoesNotMatch", "the secret key or the region may be wrong"),
    ],
)
def test_an_answer_about_a_wrong_region_names_the_region(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, remedy: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=f"<Error><Code>{code}</Code><Message>no</Message></Error>")

    async def main() -> None:
        backend = S3Backend("bucket", "root", SystemClock())
        with pytest.raises(Refused) as refused:
            await backend.get("key")
        await backend.close()
        told = f"{remedy}: AWS_REGION, or the profile, says 'eu-north-1'; give the bucket's"
        assert str(refused.value) == f"HTTP {status}: {code} no; {told}"

    with answered_by(answer) as server:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": server.url, "AWS_REGION": "eu-north-1"}.items():
            monkeypatch.setenv(name, value)
        asyncio.run(main())


def test_a_region_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host has no address."""

    async def no_address(*args: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def main(region: str) -> str:
        monkeypatch.setenv("AWS_REGION", region)
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", no_address)
        backend = S3Backend("bucket", "root", SystemClock())
        with pytest.raises((NotApplied, Refused)) as failed:
            await backend.get("key")
        return str(failed.value)

    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    told = "the region may be wrong: AWS_REGION, or the profile, says 'eu-wset-1'; give the bucket's"
    assert asyncio.run(main("eu-wset-1")).endswith(f"Name or service not known; {told}")
    assert asyncio.run(main("eu west 1")).endswith("Correct AWS_REGION, or the region of the profile")


def test_keys_that_have_expired_are_looked_for_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person or a program may write new ones into the profile."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(signed_for(request))
        if asked[-1].startswith("new"):
            return web.Response(headers={"ETag": "v"})
        return web.Response(status=400, text="<Error><Code>ExpiredToken</Code><Message>old</Message></Error>")

    async def main() -> None:
        backend = S3Backend("bucket", "root", SystemClock())
        with pytest.raises(Refused, match="ExpiredToken") as refused:
            await backend.put("key", b"data", ANY)
        assert refused.value.may_pass
        (home / ".aws/credentials").write_text(f"[default]\n{PAIR.format('new')}")
        await backend.put("key", b"data", ANY)
        await backend.close()

    with answered_by(answer) as server:
        prepare(home, monkeypatch, {"AWS_ENDPOINT_URL": server.url}, "", f"[default]\n{PAIR.format('old')}")
        asyncio.run(main())
    assert asked == ["old us-east-1", "new us-east-1"]


def test_a_host_whose_clock_is_right_signs_by_it_if_the_services_date_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        stamps.append(request.headers["x-amz-date"])
        date = {"Date": "Sun, 22 Nov 2037 02:33:01 GMT"}
        if not stamps[-1].startswith("2037"):
            return web.Response(status=404 if request.method == "GET" else 200, headers={"ETag": "v", **date})
        return web.Response(status=403, text="<Error><Code>RequestTimeTooSkewed</Code></Error>", headers=date)

    async def main() -> None:
        store = await open_store("s3://bucket/root")
        for key in ("one", "two"):
            assert isinstance(await store.put(key, b"data", ABSENT), Applied)
        await store.close()

    with answered_by(answer) as server:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        asyncio.run(main())
    assert [stamp[:4] == "2037" for stamp in stamps] == [False, True, False, False]


def test_a_host_whose_clock_is_wrong_signs_by_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        stamps.append(request.headers["x-amz-date"])
        date = {"Date": "Sun, 22 Nov 2037 02:33:01 GMT"}
        if stamps[-1].startswith("2037"):
            return web.Response(status=404 if request.method == "GET" else 200, headers={"ETag": "v", **date})
        return web.Response(status=403, text="<Error><Code>RequestTimeTooSkewed</Code></Error>", headers=date)

    async def main() -> None:
        store = await open_store("s3://bucket/root")
        assert isinstance(await store.put("key", b"data", ABSENT), Applied)
        await store.close()

    with answered_by(answer) as server:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        asyncio.run(main())
    assert [stamp[:4] == "2037" for stamp in stamps] == [False, True, True]
