"""Access tokens for GCS, with google-auth's own credentials and a metadata server that is slow, away, or refuses."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google.auth.compute_engine
import google.oauth2.credentials
import pytest
from aiohttp import web
from google.auth import _exponential_backoff
from google.auth.compute_engine import _metadata

from fray_coordinator.clock import SystemClock
from fray_coordinator.store import gcs
from fray_coordinator.store.gcs_credentials import (
    RENEW_AHEAD_SECONDS,
    AccessToken,
    TokenTransport,
    find_credentials,
    token_failure,
)
from fray_coordinator.store.interface import NotApplied, Object, Refused
from tests.support.gcs_emulator import Emulator
from tests.support.servers import gcs_emulator
from tests.support.serving import serving
from tests.support.waiting import eventually

ACCOUNT = {"email": "agent@project.iam.gserviceaccount.com", "scopes": ["storage"]}


class Metadata:
    """Compute Engine's metadata server: its n-th token is "token-n"; it answers while `open` is set."""

    def __init__(self) -> None:
        self.status = 200
        self.given = 0
        self.asked = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.set()
        while not self.open.is_set():  # noqa: ASYNC110  the server's loop has nothing else to do
            await asyncio.sleep(0.01)
        if self.status != 200:
            return web.Response(status=self.status, text="out of order")
        if "token" not in request.path:
            return web.json_response(ACCOUNT)
        self.given += 1
        return web.json_response({"access_token": f"token-{self.given}", "expires_in": 3600})


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    server = Metadata()
    monkeypatch.setattr(_exponential_backoff, "time", SimpleNamespace(sleep=lambda seconds: None))
    with serving(server.app()) as served:
        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", served.url.removeprefix("http://"))
        yield server
        server.open.set()


def credentials(seconds_left: float) -> Any:
    """The credentials of a virtual machine, with a token that is valid for this time."""
    made = google.auth.compute_engine.Credentials()  # type: ignore[no-untyped-call]
    made.token = "first"
    made.expiry = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=seconds_left)
    return made


class Stopped(SystemClock):
    """A clock on which no time passes."""

    def boottime(self) -> float:
        return 0.0


async def sent(token: AccessToken) -> str:
    headers: dict[str, str] = {}
    await token.apply(headers)
    return headers["authorization"]


async def until_sent(token: AccessToken, wanted: str) -> None:
    async def is_sent() -> bool:
        return await sent(token) == wanted

    await eventually(is_sent)


async def test_a_token_is_renewed_ahead_of_time_and_no_request_waits_for_it(metadata: Metadata) -> None:
    metadata.open.clear()
    token = AccessToken(credentials(RENEW_AHEAD_SECONDS - 10), SystemClock())
    assert await sent(token) == "Bearer first"
    await asyncio.to_thread(metadata.asked.wait)
    assert await sent(token) == "Bearer first"
    metadata.open.set()
    await until_sent(token, "Bearer token-1")
    assert await sent(token) == "Bearer token-1"
    assert metadata.given == 1


async def test_the_loop_goes_on_while_an_old_token_is_renewed(metadata: Metadata) -> None:
    metadata.open.clear()
    token = AccessToken(credentials(-1), SystemClock())
    waiting = [asyncio.create_task(sent(token)) for _ in range(3)]
    await asyncio.to_thread(metadata.asked.wait)  # this loop stands still if the request is made in it
    assert not any(task.done() for task in waiting)
    waiting.pop().cancel()  # a caller that stops waiting takes it from nobody
    await asyncio.sleep(0)
    metadata.open.set()
    assert await asyncio.gather(*waiting) == ["Bearer token-1"] * 2
    assert metadata.given == 1


@pytest.mark.parametrize("status", [404, 503])
async def test_a_good_token_is_used_while_the_metadata_server_is_away(metadata: Metadata, status: int) -> None:
    metadata.status = status
    token = AccessToken(credentials(RENEW_AHEAD_SECONDS - 10), Stopped())
    attempts = set()
    for _ in range(3):
        assert await sent(token) == "Bearer first"
        assert token._renewing is not None
        attempts.add(token._renewing)
        await asyncio.wait([token._renewing])
    assert len(attempts) == 1, "the server is not asked for each request"


async def test_without_a_good_token_a_metadata_server_that_is_away_is_an_outage(metadata: Metadata) -> None:
    metadata.status = 503
    token = AccessToken(credentials(-1), SystemClock())
    with pytest.raises(NotApplied, match=r"access tokens does not answer: (?s:.)*out of order"):
        await sent(token)
    metadata.status = 200
    assert await sent(token) == "Bearer token-1"


def test_credentials_that_were_revoked_are_refused_with_the_remedy() -> None:
    async def revoked(request: web.Request) -> web.Response:
        return web.json_response({"error": "invalid_grant", "error_description": "Token has been revoked."}, status=400)

    async def main(url: str) -> None:
        made = google.oauth2.credentials.Credentials(  # type: ignore[no-untyped-call]
            None, refresh_token="r", token_uri=f"{url}/token", client_id="i", client_secret="s"
        )
        with pytest.raises(Refused, match=r"revoked.*gcloud auth application-default login") as refused:
            await sent(AccessToken(made, SystemClock()))
        assert refused.value.may_pass

    app = web.Application()
    app.router.add_post("/token", revoked)
    with serving(app) as served:
        asyncio.run(main(served.url))


def test_a_token_that_the_storage_does_not_accept_is_renewed(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = Emulator(token="token-1")

    async def main() -> None:
        backend = gcs.GcsBackend("bucket", "root", SystemClock())
        with pytest.raises(Refused, match="HTTP 401") as refused:
            await backend.put("key", b"data", gcs.ANY)
        assert refused.value.may_pass
        await backend.put("key", b"data", gcs.ANY)
        assert isinstance(await backend.get("key"), Object)
        await backend.close()

    monkeypatch.setattr(gcs, "find_credentials", lambda: credentials(3600))
    with gcs_emulator(emulator) as server:
        monkeypatch.setattr(gcs, "_endpoint", lambda: server.url)
        asyncio.run(main())


async def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No request is sent to the storage without them."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", True)

    with pytest.raises(Refused, match=r"no valid credentials.*gcloud auth application-default login"):
        await gcs.GcsBackend("bucket", "root", SystemClock()).get("key")


@pytest.mark.parametrize("place", ["gcloud's", "a variable's"])
def test_the_credentials_of_a_user_are_found_and_gcloud_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    async def give(request: web.Request) -> web.Response:
        asked = await request.post()
        assert (asked["grant_type"], asked["refresh_token"]) == ("refresh_token", "r")
        return web.json_response({"access_token": "mine", "expires_in": 3600})

    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gcloud").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (programs / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    file = tmp_path / ("application_default_credentials.json" if place == "gcloud's" else "mine.json")
    if place != "gcloud's":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    app = web.Application()
    app.router.add_post("/token", give)
    with serving(app) as served:
        monkeypatch.setattr(google.oauth2.credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{served.url}/token")
        about = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}
        file.write_text(json.dumps(about))
        assert asyncio.run(sent(AccessToken(find_credentials(), SystemClock()))) == "Bearer mine"
    assert not (tmp_path / "started").exists()


def test_a_setting_that_can_never_work_is_no_outage_of_the_token_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(google.auth.exceptions.TransportError) as failed:
        TokenTransport()("https://token.test/")
    failure = token_failure(failed.value)
    assert isinstance(failure, Refused)
    assert "ALL_PROXY: " in str(failure)
