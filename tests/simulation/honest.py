"""A store whose outcomes are compared with what really lies there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fray_coordinator.store.api import Expectation, Outcome, Rejected
from fray_coordinator.store.store import Store
from tests.simulation.invariants import Broken


class HonestStore(Store):
    """Tells `broken` of a write that is called rejected although it is in the object that it was rejected for."""

    broken: Callable[[Broken], None]

    async def put(
        self, key: str, data: bytes, expect: Expectation, op: str | None = None, patience: float | None = None
    ) -> Outcome:
        outcome = await super().put(key, data, expect, op, patience)
        if op is not None and isinstance(outcome, Rejected) and outcome.current is not None:
            lies = msgspec.json.decode(outcome.current.data)
            if op in (lies.get("op"), lies.get("created_op"), *lies.get("recent_ops", ())):
                self.broken(
                    Broken("a rejected write is not in the object", f"{key} holds the rejected write {op}", key)
                )
        return outcome
