"""Typed records in the store: reads them, writes them by compare-and-swap, and decides again after a lost race."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from fray_coordinator.clock import Clock, RandomSource
from fray_coordinator.errors import REMOVE_HINT, BadRecord, MisplacedRecord
from fray_coordinator.store.interface import ABSENT, Applied, Expectation, NotModified, Object, Outcome
from fray_coordinator.store.store import Store
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import keys_of
from fray_layouts.records import Record

R = TypeVar("R", bound=Record)

_FREE_REJECTIONS, _CONTENTION_WAIT = 2, 0.1
"""Rejections in a row before an update waits, and seconds by which the longest wait then grows with each rejection. The
rejections count the writers that were faster, and each of them needs a round trip."""


class Stored(msgspec.Struct, Generic[R], frozen=True):
    """A record as it was read or written. `raw` keeps the fields that this version does not know."""

    key: str
    record: R
    raw: dict[str, Any]
    version: str
    updated: float


def record_of(stored: Stored[R] | None) -> R | None:
    return stored.record if stored is not None else None


@dataclass(frozen=True, slots=True)
class UpdateResult(Generic[R]):
    """The result of `update` and `write`.

    Attributes:
        stored: the present record; None if it is absent.
        wrote: whether this call changed it.
        rejections: number of conditional writes that were rejected because somebody else had written.
    """

    stored: Stored[R] | None
    wrote: bool
    rejections: int


class Records:
    """Typed access to the objects that are changed by compare-and-swap."""

    def __init__(self, store: Store, clock: Clock, rng: RandomSource) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng

    async def read(self, key: str, kind: type[R], one_of_many: bool = False) -> Stored[R] | None:
        """Read a record; None if absent. Raises BadRecord if it is not of this kind or belongs under another key.

        one_of_many: as in `Store.get`.
        """
        return self._decoded(key, kind, await self._store.get(key, one_of_many))

    async def reread(self, known: Stored[R], one_of_many: bool = False) -> Stored[R] | None:
        """Read a record again: `known` itself if it has not changed (a cheap request), None if absent.

        one_of_many: as in `Store.get`.
        """
        answer = await self._store.get_if_changed(known.key, known.version, one_of_many=one_of_many)
        return known if isinstance(answer, NotModified) else self._decoded(known.key, type(known.record), answer)

    async def update(
        self,
        key: str,
        kind: type[R],
        decide: Callable[[R | None], R | None],
        known: Stored[R] | None = None,
        patience: float | None = None,
        one_of_many: bool = False,
    ) -> UpdateResult[R]:
        """Write what `decide` makes of the record; call it again whenever somebody else wrote first.

        Args:
            decide: gets the present record (None: absent) and returns what to write, or None to write nothing.
            known: the record as the caller knows it; saves the first read.
            patience, one_of_many: of each write, as in `Store.put`.

        Raises:
            StoreUnavailable: unresolved: the write was applied, or was not, or will be. Call again with the same
                intent.
        """
        current = known or await self.read(key, kind)
        rejections = 0
        while True:
            wanted = decide(current.record if current else None)
            if wanted is None:
                return UpdateResult(current, False, rejections)
            written = await self.write(key, kind, wanted, current, patience, one_of_many)
            if written.wrote:
                return UpdateResult(written.stored, True, rejections)
            current = written.stored
            rejections += 1
            if rejections > _FREE_REJECTIONS:
                await self._clock.sleep(self._rng.uniform(0, _CONTENTION_WAIT * rejections))

    async def change(
        self,
        key: str,
        kind: type[R],
        decide: Callable[[R], R | None],
        known: Stored[R] | None = None,
        patience: float | None = None,
    ) -> UpdateResult[R]:
        """Like `update`, but only for a record that exists; an absent record stays absent."""
        return await self.update(key, kind, lambda now: decide(now) if now is not None else None, known, patience)

    async def put(self, key: str, record: Record, expect: Expectation, patience: float | None = None) -> Outcome:
        """Write a record that does not continue another one, without a read, on condition of `expect` (`Store.put`)."""
        op = self._rng.unique_id()
        return await self._store.put(key, codec.encode(codec.successor(record, op, None)), expect, op, patience)

    async def write(
        self,
        key: str,
        kind: type[R],
        wanted: R,
        current: Stored[R] | None,
        patience: float | None = None,
        one_of_many: bool = False,
    ) -> UpdateResult[R]:
        """Write `wanted` once, on condition of `current` (None: the record must be absent).

        `wrote` is True only if the body is the object's present state; otherwise `stored` is what is there instead.

        Args:
            patience, one_of_many: as in `Store.put`.

        Raises:
            BadRecord: the new record would be unreadable, because a field of `current` was at the end of its bounds;
                nothing was written. Or the object that is there instead is not a record.
        """
        body = codec.successor(wanted, self._rng.unique_id(), current.record if current else None)
        raw = current.raw if current else {}
        expect = current.version if current else ABSENT
        data = codec.encode(body, raw)
        try:
            codec.decode(data, kind)
        except Malformed as error:
            raise BadRecord(f"{key} cannot be followed by another {kind.__name__}: {error}{REMOVE_HINT}") from None
        outcome = await self._store.put(key, data, expect, body.op, patience, one_of_many)
        if isinstance(outcome, Applied):
            updated = self._store.now() if outcome.updated is None else outcome.updated
            return UpdateResult(Stored(key, body, raw, outcome.version, updated), True, 0)
        return UpdateResult(self._decoded(key, kind, outcome.current), False, 1)

    def _decoded(self, key: str, kind: type[R], found: Object | None) -> Stored[R] | None:
        if found is None:
            return None
        try:
            decoded = codec.decode(found.data, kind)
        except Malformed as error:
            raise BadRecord(f"{key} does not hold a {kind.__name__}: {error}{REMOVE_HINT}") from None
        if (places := keys_of(decoded.record)) and key not in places:
            own = places[0]
            raise MisplacedRecord(f"{key} holds a copy of {own}, or what was moved from there{REMOVE_HINT}", own)
        return Stored(key, decoded.record, decoded.raw, found.version, found.updated)
