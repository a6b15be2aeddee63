"""Finds the credentials for GCS, and sends the requests to token servers.

google-auth does both, but its own transport is not used, because importing that takes as long as everything else needed
for a token.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google.auth
import google.auth.exceptions
import google.auth.transport
from google.auth.credentials import Credentials

from fray_coordinator.store.http_client import ANSWER_TIMEOUT, HttpClient
from fray_coordinator.store.http_connection import HttpAnswer
from fray_coordinator.store.interface import AttemptFailed, NotApplied, Refused
from fray_coordinator.variables import check_for_libraries, read_variable
from fray_layouts.errors import InvalidInput

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
