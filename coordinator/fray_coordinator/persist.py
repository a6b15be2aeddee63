"""Waiting for the store to do what must be done, through outages and refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fray_coordinator.backoff import STORE_PAUSES, backoff
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, StoreRefused

T = TypeVar("T")


async def persist(
    core: Core,
    act: Callable[[], Awaitable[T]],
    through: type[StoreError] = StoreError,
    in_haste: Callable[[], bool] = lambda: False,
) -> T:
    """Repeat `act` until the store does it: an outage ends, and so does a refusal.

    Args:
        through: the errors after which it is repeated; others are raised.
        in_haste: whether a refusal is raised, too.
    """
    pauses = backoff(*STORE_PAUSES)
    while True:
        try:
            return await act()
        except through as error:
            if isinstance(error, StoreRefused) and in_haste():
                raise
            await core.clock.sleep(core.jittered(next(pauses)))
