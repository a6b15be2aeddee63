"""Credentials and access tokens for GCS; a thread renews the token ahead of time.

google-auth finds the credentials and asks token servers, but its own transport is not used, because importing that
takes as long as everything else needed for a token.

google-auth itself renews a token within the request that finds it expired. Then the event loop would block while a
token server is slow, and a request would fail if that server is down although the token is valid for minutes.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import google.auth
import google.auth.exceptions
import google.auth.transport
from google.auth.credentials import Credentials

from fray_coordinator.clock import Clock
from fray_coordinator.store.http_client import ANSWER_TIMEOUT, HttpAnswer, HttpClient
from fray_coordinator.store.interface import AttemptFailed, NotApplied, Refused
from fray_layouts.errors import InvalidInput
from fray_runtime.variables import check_for_libraries, read_variable

SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
"""The scope of tokens: objects, and the settings of buckets, which `fray doctor` reads."""

UNREACHABLE_ERRORS = (
    google.auth.exceptions.TransportError,
    google.auth.exceptions.TimeoutError,
    google.auth.exceptions.ResponseError,
    OSError,
)
"""Errors of an unreachable token server; google-auth wraps them in its errors for a refusal."""


class TokenTransport(google.auth.transport.Request):
    """The transport for google-auth's requests to token servers; for threads that run no event loop."""

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> "TokenAnswer":
        data = body.encode() if isinstance(body, str) else body or b""
        try:
            return TokenAnswer(asyncio.run(_ask(method, url, headers or {}, data, timeout or ANSWER_TIMEOUT)))
        except (AttemptFailed, OSError, ValueError) as error:
            raise google.auth.exceptions.TransportError(str(error) or "no answer in time") from error  # type: ignore[no-untyped-call]


class TokenAnswer(google.auth.transport.Response):
    """A token server's answer in the form that google-auth reads."""

    def __init__(self, answer: HttpAnswer) -> None:
        self._answer = answer

    status = property(lambda self: self._answer.status)
    headers = property(lambda self: self._answer.headers)
    data = property(lambda self: self._answer.body)


async def _ask(method: str, url: str, headers: Mapping[str, str], data: bytes, seconds: float) -> HttpAnswer:
    client = HttpClient()
    try:
        async with asyncio.timeout(seconds):
            return await client.request(method, url, headers, data)
    finally:
        client.close()


def find_credentials() -> Credentials:
    """The application default credentials, as Google's own tools find them. Raises `AttemptFailed`."""
    try:
        if (found := _of_this_user()) is not None:
            return found
        check_for_libraries("GOOGLE_", "CLOUDSDK_", "GCE_", "GCLOUD_")
        found, _ = google.auth.default(scopes=[SCOPE], request=TokenTransport())
        return found
    except InvalidInput:
        raise
    except Exception as error:
        raise token_failure(error) from error


def _of_this_user() -> Credentials | None:
    """The credentials of `gcloud auth application-default login`; None if there are others.

    google-auth would find them too, but it then starts `gcloud`, and warns, for a project that storage does not need.
    """
    folder = read_variable("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
    file = read_variable("GOOGLE_APPLICATION_CREDENTIALS") or f"{folder}/application_default_credentials.json"
    try:
        about = json.loads(Path(file).read_text())
        if about["type"] != "authorized_user":
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    from google.oauth2.credentials import Credentials as UserCredentials

    found: Credentials = UserCredentials.from_authorized_user_info(about)  # type: ignore[no-untyped-call]
    return found


def token_failure(error: Exception) -> AttemptFailed:
    """The outcome of a request for which no token was available."""
    if refusal := next((cause for cause in _causes(error) if isinstance(cause, Refused)), None):
        return refusal
    if getattr(error, "retryable", False) or any(isinstance(cause, UNREACHABLE_ERRORS) for cause in _causes(error)):
        return NotApplied(f"the server that gives access tokens does not answer: {error}")
    text = f"no valid credentials ({error}); run `gcloud auth application-default login`"
    return Refused(text, may_pass=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


RENEW_AHEAD_SECONDS = 240.0
"""Remaining seconds at which a token is renewed; Compute Engine has no new token before five minutes are left."""

RENEWAL_SPACING = 15.0
"""Seconds between two attempts to renew a token that is still valid."""

MIN_SECONDS_LEFT = 5.0
"""Remaining seconds at which a token is no longer sent, because it might have expired when it arrives."""


class AccessToken:
    """The access token of one event loop."""

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock
        self._renewing: asyncio.Task[None] | None = None
        self._renew_at = float("-inf")
        self._refused: str | None = None

    async def apply(self, headers: dict[str, str]) -> None:
        """Put the token into a request's headers; waits for a new token only if this one is not valid.

        Raises:
            NotApplied: the token server does not answer.
            Refused: it gives no token.
        """
        refused = self._refused is not None and self._refused == self._credentials.token
        left = 0.0 if refused else self._seconds_left()
        if left < RENEW_AHEAD_SECONDS:
            self._renew(at_once=left < MIN_SECONDS_LEFT and not refused)
        if left < MIN_SECONDS_LEFT and self._renewing is not None:
            # Shielded: a cancelled or timed-out caller must not cancel the renewal for the others that wait for it.
            await asyncio.shield(self._renewing)
        self._credentials.apply(headers)  # type: ignore[no-untyped-call]

    def refused(self) -> None:
        """Note that the storage rejected the token; the next request gets another one, if there is one."""
        self._refused = self._credentials.token

    def _renew(self, at_once: bool) -> None:
        now = self._clock.boottime()
        if self._renewing is not None and not self._renewing.done():
            return
        if at_once or now >= self._renew_at:
            self._renew_at = now + RENEWAL_SPACING
            self._renewing = asyncio.ensure_future(asyncio.to_thread(self._fetch))
            self._renewing.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _fetch(self) -> None:
        try:
            self._credentials.refresh(TokenTransport())  # type: ignore[no-untyped-call]
        except Exception as error:
            raise token_failure(error) from error

    def _seconds_left(self) -> float:
        if self._credentials.token is None:
            return 0.0
        expiry = self._credentials.expiry
        if expiry is None:
            return float("inf")
        return float(expiry.replace(tzinfo=UTC).timestamp() - self._clock.wall())
