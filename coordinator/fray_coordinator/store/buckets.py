"""Common parts of the GCS and S3 backends: names below a prefix, the server's clock, the meaning of an answer.

Other vendors' servers leave fields out, and proxies answer with pages of their own. An answer that cannot be understood
says nothing about the attempt: it may have been applied.
"""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from fray_coordinator.clock import Clock
from fray_coordinator.store.interface import AttemptFailed, NoBucket, NotApplied, PreconditionFailed, Refused, Unknown


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """Settings of a bucket that concern a cluster, as far as the credentials may read them.

    Attributes:
        soft_delete_days: days for which deleted and overwritten objects are kept, and paid for; 0 when off.
        retention: the rules that forbid to delete or overwrite objects, in the provider's words.
        unreadable: settings that the credentials may not read.
    """

    soft_delete_days: float = 0
    lifecycle_rules: int = 0
    retention: tuple[str, ...] = ()
    versioning: bool = False
    unreadable: tuple[str, ...] = ()


@runtime_checkable
class Inspectable(Protocol):
    """A backend that can read its bucket's settings."""

    async def settings(self) -> BucketSettings:
        """Read the settings. Raises `AttemptFailed`; `NoBucket` if there is no such bucket."""


class Location:
    """A bucket, and the prefix in it that is the root."""

    def __init__(self, scheme: str, bucket: str, prefix: str) -> None:
        self.root = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        self.bucket = bucket
        self._before = f"{prefix}/" if prefix else ""

    def name(self, key: str) -> str:
        return self._before + key

    def holds(self, name: str, prefix: str) -> bool:
        """Whether a listed name has the prefix that was asked for; some servers ignore prefixes."""
        return name.startswith(self._before + prefix)

    def key(self, name: str) -> str:
        return name.removeprefix(self._before)


def bucket_address(root: str, url: str, own_domains: tuple[str, ...]) -> str:
    """The canonical form of a bucket's root.

    All buckets of the provider itself have different names. At another endpoint there may be a copy with the same name,
    so there the endpoint is part of the address. All loopback addresses are one.

    Args:
        url: the address of any object, or of the bucket.
        own_domains: the provider's domains, with a dot before each.
    """
    parts = urlsplit(url)
    host, port = (parts.hostname or "").lower(), f":{parts.port}" if parts.port else ""
    if f".{host}".endswith(own_domains):
        return root
    return f"{root}?endpoint={'localhost' if host in ('127.0.0.1', '::1') else host}{port}"


CLOCK_ANSWERS = 31
"""Last answers whose `Date` is remembered. If a third of the answers is wrong, hardly ever most of so many are."""


class ServerClock:
    """The offset of the server's clock from this host's, narrowed down by the `Date` of every answer.

    `Date` has whole seconds, so one answer bounds the offset: between `Date - received` and `Date + 1 - sent`. Many
    answers together give a narrower range. An answer that contradicts it counts only if the middle one of the last
    answers does so too: then a clock was set. Otherwise one of the servers behind the address has a wrong clock, and
    each of its answers would make all agents look silent.
    """

    def __init__(self, clock: Clock) -> None:
        self.wall = clock.wall
        self._low = float("-inf")
        self._high = float("inf")
        self._last: deque[tuple[float, float]] = deque(maxlen=CLOCK_ANSWERS)

    def learn(self, date: str | None, sent: float) -> None:
        """Learn from an answer that has just arrived. date: its header; sent: this host's wall time of the request."""
        server = _parse_date(date)
        if server is None:
            return
        told = server - self.wall(), server + 1 - sent
        self._last.append(told)
        if self._agrees(told):
            self._narrow(told)
        elif not self._agrees(middle := sorted(self._last)[(len(self._last) - 1) // 2]):
            self._low, self._high = middle
            for other in self._last:
                if self._agrees(other):
                    self._narrow(other)

    def _agrees(self, told: tuple[float, float]) -> bool:
        return told[0] <= self._high and self._low <= told[1]

    def _narrow(self, told: tuple[float, float]) -> None:
        self._low, self._high = max(told[0], self._low), min(told[1], self._high)

    def offset(self) -> float | None:
        """Seconds to add to this host's wall clock; None before the first answer."""
        return None if self._low == float("-inf") else (self._low + self._high) / 2


def _parse_date(date: str | None) -> float | None:
    """The time in a `Date` header; None if it is missing or malformed."""
    try:
        parsed = parsedate_tz(date) if date else None
        return None if parsed is None else mktime_tz(parsed)
    except (ValueError, OverflowError):
        return None


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
"""Error codes of S3 and GCS for throttling, whatever status they come with."""

TRANSFER_ERROR_CODES = frozenset({"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"})
"""Error codes of requests that arrived incomplete. They come with status 400, although a repetition works."""

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
"""Error codes of expired credentials, which are renewed, or of a wrong clock, which is set; neither needs a change
here."""


def classify_status(status: int, message: str, missing_right: str, after: str | None = None) -> AttemptFailed:
    """The outcome of an attempt whose HTTP status was not success, 304 or 404.

    Args:
        message: the server's text, which includes its error code.
        missing_right: the right that 401 and 403 are about, in the provider's terms.
        after: the answer's `Retry-After`.
    """
    text = f"HTTP {status}: {' '.join(message[: 2 * MAX_MESSAGE_CHARACTERS].split())[:MAX_MESSAGE_CHARACTERS]}"
    codes = frozenset(re.findall(r"\w+", message[: 4 * MAX_MESSAGE_CHARACTERS]))
    if status == 412:
        return PreconditionFailed(text)
    if status >= 500 and status not in (501, 505):
        return Unknown(text)  # even with a throttling code: it may have been applied
    if status in (307, 409, 429) or codes & THROTTLING_CODES:
        return NotApplied(text, _retry_after(after))
    if status == 408 or codes & TRANSFER_ERROR_CODES:
        return Unknown(text)
    if codes & STALE_CREDENTIAL_CODES or status == 401:
        stale = "the credentials or this host's clock are out of date, or none were sent"
        return Refused(f"{text}; {stale}; they need the right {missing_right}", may_pass=True)
    if status == 403:
        return Refused(f"{text}; the credentials need the right {missing_right}")
    return Refused(text)


def no_such_bucket(bucket: str, command: str, right: str) -> NoBucket:
    """The outcome of an attempt in a missing bucket. `command` and the bucket's name create it; that needs `right`."""
    remedy = f"correct its name, or make it: `{command}{bucket}`, for which the credentials need the right {right}"
    return NoBucket(f"the bucket {bucket} does not exist; {remedy}")


@contextmanager
def parsing_answer(what: str) -> Iterator[None]:
    """Guard the reading of an answer. Raises `Unknown` if a field is missing or malformed."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unknown(f"the answer to {what} is malformed ({type(error).__name__}: {error})") from error


def checked_version(answer: str | None) -> str:
    """The version in an answer. Raises ValueError if there is none, because a conditional write would need it."""
    if not isinstance(answer, str) or not answer:
        raise ValueError("it has no version of the object")
    return answer


def _retry_after(after: str | None) -> float | None:
    """The seconds that the server asks to wait, but at most a minute."""
    return min(float(after), 60.0) if after and after.isdecimal() and after.isascii() else None
