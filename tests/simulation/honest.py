"""A store whose outcomes are compared with what really lies there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fray_coordinator.store.interface import Expectation, Outcome, Rejected
from fray_coordinator.store.store import Store
from fray_layouts.records import Record
from tests.simulation.invariants import Broken


class HonestStore(Store):
    """Tells `broken` of a write that is called rejected although it is in the object that it was rejected for."""

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
    """The writes that a record says are in it; none if it is no record."""
    try:
        lies = msgspec.json.decode(data, type=Record)
    except (ValueError, RecursionError):
        return []
    return [lies.op, lies.created_op, *lies.recent_ops]
