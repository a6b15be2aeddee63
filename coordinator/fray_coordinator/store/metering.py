"""Counts the billed requests and prices them; tracks which kinds of requests fail at present, and says so in the log.

Providers price by class: a write or a list (class A) costs twelve times a read (class B), and a delete costs nothing.
"""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass, field, replace

from fray_coordinator.clock import Clock
from fray_coordinator.store.interface import (
    ROWS_PER_REQUEST,
    Applied,
    Batches,
    Expectation,
    Listed,
    NotModified,
    Object,
    StoreBackend,
    Version,
)
from fray_layouts.escaping import one_line

log = logging.getLogger("fray")

READ_VERBS = frozenset({"get", "list"})
"""The verbs that change nothing. If they work, writes may still fail, for example on a full disk."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for 1,000 requests of each class, and for a gigabyte that is stored for a month."""

    class_a: float
    class_b: float
    gigabyte_month: float


GCS_PRICES = Prices(class_a=0.005, class_b=0.0004, gigabyte_month=0.020)
S3_PRICES = Prices(class_a=0.005, class_b=0.0004, gigabyte_month=0.023)
"""List prices of standard storage in one region of the United States."""


@dataclass(slots=True)
class RequestCounts:
    """Numbers of requests sent, including every retry; the difference of two snapshots counts those between them.

    log_bytes: bytes of the log chunks that were stored.
    """

    writes: int = 0
    lists: int = 0
    reads: int = 0
    deletes: int = 0
    log_bytes: int = 0

    @property
    def class_a(self) -> int:
        return self.writes + self.lists

    @property
    def class_b(self) -> int:
        return self.reads

    def cost(self, prices: Prices) -> float:
        return (self.class_a * prices.class_a + self.class_b * prices.class_b) / 1000

    def snapshot(self) -> RequestCounts:
        return replace(self)

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        return RequestCounts(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


class MeteredBackend:
    """A backend that counts the requests to the backend inside it into `usage`."""

    def __init__(self, backend: StoreBackend, usage: RequestCounts) -> None:
        self.root, self.scheme, self.local = backend.root, backend.scheme, backend.local
        self.server_offset, self.close = backend.server_offset, backend.close
        self._backend = backend
        self._usage = usage

    @property
    def address(self) -> str:
        return self._backend.address

    @property
    def batches(self) -> Batches | None:
        """The verbs on many objects at once; None if the backend has none."""
        return getattr(self._backend, "batches", None)

    async def get(self, key: str) -> Object | None:
        self._usage.reads += 1
        return await self._backend.get(key)

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        self._usage.reads += 1
        return await self._backend.get_if_changed(key, version)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        self._usage.writes += 1
        return await self._backend.put(key, data, expect)

    async def delete(self, key: str, expect: Expectation) -> None:
        self._usage.deletes += 1
        await self._backend.delete(key, expect)

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        self._usage.deletes += 1
        await self._backend.withdraw(key, expect, aside)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        self._usage.lists += 1
        rows = await self._backend.list(prefix, after, limit, versions)
        self._usage.lists += max(0, len(rows) - 1) // ROWS_PER_REQUEST
        return rows


FAILURE_MEMORY_SECONDS = 180.0
"""Seconds after which a failure, without a later request of its kind, no longer counts as present."""

MAX_REASON_CHARACTERS = 300
"""Characters of one failure's text that are kept."""


@dataclass(slots=True)
class RepeatedRequest:
    """A request that is repeated until it is answered.

    Attributes:
        patience: seconds for which it is repeated.
        started: when it began, by the clock's `boottime`.
        last: the last answer; "" if there was none yet.
    """

    verb: str
    key: str
    patience: float
    started: float
    last: str = ""


@dataclass(slots=True)
class FailureTracker:
    """The kinds of requests whose last request failed; an agent reports them as its problem for that time.

    A kind is a verb on a top-level folder: ("put", "jobs"). The log says once that the storage does not answer, and
    once that it answers again. An outage ends with the next answer to a read, if reads had no answer, else to a write.
    """

    clock: Clock
    root: str
    _failed: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    _outage: tuple[bool, float] | None = None  # whether reads had no answer, and since when; None while it answers

    def failed(self, verb: str, key: str, why: str) -> None:
        """Note that a request failed for good; its caller gets the error."""
        self._failed[_request_kind(verb, key)] = (self.clock.boottime(), why[:MAX_REASON_CHARACTERS])

    def unanswered(self, request: RepeatedRequest) -> None:
        """Say in the log that the storage has answered no such request since this one, unless the log says it."""
        if self._outage is None:
            self._outage = request.verb in READ_VERBS, request.started
            lasted = self.clock.boottime() - request.started
            answer = f"the last answer was: {request.last}" if request.last else "there was no answer"
            what = f"{request.verb} {self.root}/{request.key}: no success for {lasted:.0f} s"
            log.warning("%s", one_line(f"{what}, {answer}; it is tried for {request.patience:g} s"))

    def worked(self, verb: str, key: str) -> None:
        """Note that a request was answered."""
        if self._failed:
            self._failed.pop(_request_kind(verb, key), None)
        if self._outage is not None and self._outage[0] == (verb in READ_VERBS):
            lasted, self._outage = self.clock.boottime() - self._outage[1], None
            log.warning("%s: reachable again after %.0f s", self.root, lasted)

    def now(self) -> dict[str, str]:
        """By kind ("put jobs"), the reason why its last request failed."""
        since = self.clock.boottime() - FAILURE_MEMORY_SECONDS
        self._failed = {kind: (at, why) for kind, (at, why) in self._failed.items() if at >= since}
        return {" ".join(kind): why for kind, (_, why) in self._failed.items()}


def _request_kind(verb: str, key: str) -> tuple[str, str]:
    return verb, key.partition("/")[0]
