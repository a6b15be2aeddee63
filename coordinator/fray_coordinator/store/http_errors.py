"""The outcome of one attempt at an object, by the answer of GCS, of S3 or of a server that speaks like them.

Servers of others leave fields out, and proxies answer in a server's place with pages of their own. What cannot be
understood says nothing about the attempt: it may have been applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fray_coordinator.store.interface import AttemptFailed, NotApplied, PreconditionFailed, Refused, Unknown

MAX_MESSAGE_CHARACTERS = 300
"""Characters of a server's message that errors quote."""

THROTTLING_CODES = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "TooManyRequests",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "quotaExceeded",
        "dailyLimitExceeded",
    }
)
"""Codes of S3 and GCS that ask for patience, under whatever status they come."""

TRANSFER_ERROR_CODES = frozenset({"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"})
"""Codes of requests that did not arrive whole: they come with status 400, and the next one does."""

STALE_CREDENTIAL_CODES = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "TokenRefreshRequired",
        "InvalidToken",
        "RequestExpired",
        "RequestTimeTooSkewed",
    }
)
"""Codes of credentials that are renewed, or of a clock that is set, without anybody's doing anything about Fray."""


def classify_status(status: int, message: str, missing_right: str, after: str | None = None) -> AttemptFailed:
    """The outcome of an attempt that was answered with an HTTP status other than success, 304 and 404.

    Args:
        message: the server's words, its error code among them.
        missing_right: what 401 and 403 are about, in the provider's terms.
        after: the answer's `Retry-After`.
    """
    text = f"HTTP {status}: {' '.join(message[: 2 * MAX_MESSAGE_CHARACTERS].split())[:MAX_MESSAGE_CHARACTERS]}"
    codes = frozenset(re.findall(r"\w+", message[: 4 * MAX_MESSAGE_CHARACTERS]))
    if status == 412:
        return PreconditionFailed(text)
    if status >= 500 and status not in (501, 505):
        return Unknown(text)  # even if its code asks for patience: it may have been applied
    if status in (307, 409, 429) or codes & THROTTLING_CODES:
        return NotApplied(text, _retry_after(after))
    if status == 408 or codes & TRANSFER_ERROR_CODES:
        return Unknown(text)
    if codes & STALE_CREDENTIAL_CODES or status == 401:
        return Refused(f"{text}; the credentials or this host's clock are out of date", may_pass=True)
    if status == 403:
        return Refused(f"{text}; the credentials need the right {missing_right}")
    return Refused(text)


@contextmanager
def parsing_answer(what: str) -> Iterator[None]:
    """Read fields of an answer. Raises `Unknown` when one is missing or is not what it should be."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unknown(f"the answer to {what} is not one of this storage ({type(error).__name__}: {error})") from error


def checked_version(answer: str | None) -> str:
    """The version in an answer. Raises ValueError if there is none: nothing could be written on condition of it."""
    if not isinstance(answer, str) or not answer:
        raise ValueError("it has no version of the object")
    return answer


def _retry_after(after: str | None) -> float | None:
    """The time that the server asks for; at most a minute, whatever it says."""
    return min(float(after), 60.0) if after and after.isdecimal() and after.isascii() else None
