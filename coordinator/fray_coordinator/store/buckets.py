"""Common parts of the GCS and S3 backends: names below a prefix, the server's clock, time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import Protocol, TypeVar, runtime_checkable

from fray_coordinator.clock import Clock
from fray_coordinator.store.interface import BadObject

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
"""Seconds for a connection: Linux repeats a lost SYN after 1, 3 and 7 s."""
ANSWER_TIMEOUT = 20.0
"""Seconds for an answer, beside the time for its body: a third of a store's patience, so that it is asked again."""
CHUNK_BYTES = 256 * 1024
"""Bytes of a body that are read at a time."""
MIN_BYTES_PER_SECOND = 1_000_000
"""A connection that carries less is given up, so that a larger body gets a longer time."""


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """Settings of a bucket that concern a cluster, as far as the credentials may read them.

    Attributes:
        soft_delete_days: deleted and overwritten objects are kept (and paid) for so long; 0 when off.
        retention: what forbids to delete or overwrite, in the provider's words.
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
        """Raises `AttemptFailed`."""
        ...


class Location:
    """A bucket and the prefix in it that is the root."""

    def __init__(self, scheme: str, bucket: str, prefix: str) -> None:
        self.root = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        self.bucket = bucket
        self._before = f"{prefix}/" if prefix else ""

    def name(self, key: str) -> str:
        return self._before + key

    def holds(self, name: str, prefix: str) -> bool:
        """Whether a listed name is what was asked for: some servers know no prefixes."""
        return name.startswith(self._before + prefix)

    def key(self, name: str) -> str:
        return name.removeprefix(self._before)


class ServerClock:
    """The offset of the server's clock from this host's, narrowed down by every answer's `Date`.

    `Date` is cut to whole seconds, so one answer says: between `Date - received` and `Date + 1 - sent`. Many answers
    meet in a narrower range. When they contradict each other, one of the clocks was set, and only the newest counts.
    """

    def __init__(self, clock: Clock) -> None:
        self.wall = clock.wall
        self._low = float("-inf")
        self._high = float("inf")

    def learn(self, date: str | None, sent: float) -> None:
        """Learn from an answer that just arrived. date: its header; sent: this host's wall time of the request."""
        server = _parse_date(date)
        if server is None:
            return
        low, high = server - self.wall(), server + 1 - sent
        self._low, self._high = max(low, self._low), min(high, self._high)
        if self._low > self._high:
            self._low, self._high = low, high

    def offset(self) -> float | None:
        """Seconds to add to this host's wall clock; None before the first answer."""
        return None if self._low == float("-inf") else (self._low + self._high) / 2


def _parse_date(date: str | None) -> float | None:
    """The time in a header; None if it is none."""
    try:
        parsed = parsedate_tz(date) if date else None
        return None if parsed is None else mktime_tz(parsed)
    except (ValueError, OverflowError):
        return None


async def read_body(read: Callable[[int], Awaitable[bytes]], length: int | None, most: int) -> bytes:
    """A body, read piece by piece.

    Args:
        length: as the server gives it; None if it does not.
        most: bytes. Raises `BadObject` for a longer body, of which no more is read.
    """
    parts: list[bytes] = []
    left = most if (length or 0) <= most else -1
    while left >= 0 and (part := await read(CHUNK_BYTES)):
        parts.append(part)
        left -= len(part)
    if left < 0:
        raise BadObject(f"it has more than the {most} bytes that may lie under this name")
    return b"".join(parts)


def request_timeout(size: int = 0) -> asyncio.Timeout:
    """The time limit for one request and answer that carry `size` bytes; raises `TimeoutError`."""
    return asyncio.timeout(ANSWER_TIMEOUT + size / MIN_BYTES_PER_SECOND)
