"""A store that compares its outcomes with the real contents."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fray_coordinator.store.interface import Expectation, Outcome, Rejected
from fray_coordinator.store.store import Store
from fray_layouts.records import Record
from tests.simulation.invariants import Broken


class HonestStore(Store):
    """Reports a write to `broken` if it was reported as rejected although the object contains it."""

    broken: Callable[[Broken], None]

    async def put(
        self,
        key: str,
        data: bytes,
        expect: Expectation,
        op: str | None = None,
        patience: float | None = None,
        one_of_many: bool = False,
    ) -> Outcome:
        outcome = await super().put(key, data, expect, op, patience, one_of_many)
        lies = outcome.current if isinstance(outcome, Rejected) else None
        if op is not None and lies is not None and op in _ops(lies.data):
            self.broken(Broken("a rejected write is not in the object", f"{key} holds the rejected write {op}", key))
        return outcome


def _ops(data: bytes) -> list[object]:
    """The operation ids in a record; none if the object is not a record."""
    try:
        lies = msgspec.json.decode(data, type=Record)
    except (ValueError, RecursionError):
        return []
    return [lies.op, lies.created_op, *lies.recent_ops]
