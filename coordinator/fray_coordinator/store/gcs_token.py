"""The access token for GCS: a thread renews it ahead of time, and it is used as long as it is valid.

google-auth itself renews a token within the request that finds it expired. Then the event loop would block while a
token server is slow, and a request would fail if that server is down although the token is valid for minutes.
"""

import asyncio
from datetime import UTC

from google.auth.credentials import Credentials

from fray_coordinator.clock import Clock
from fray_coordinator.store.gcs_credentials import TokenTransport, token_failure

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
