"""Repeats store operations that must succeed, through outages and refusals."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fray_coordinator.backoff import STORE_PAUSES, backoff
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, is_outage

T = TypeVar("T")

ALONE_PATIENCE = 120.0
"""Seconds for which a job keeps its room while the store answers, but not for objects that the job needs: two calls,
each as long as the store's patience. Then the job is tried on another host."""


async def persist(
    core: Core, act: Callable[[], Awaitable[T]], gives_up: Callable[[StoreError], bool] = lambda error: False
) -> T:
    """Repeat `act` until the store has done it. Outages end, and rights that were refused may be granted.

    gives_up: called after each failure; returns whether to raise the failure instead of repeating.
    """
    pauses = backoff(*STORE_PAUSES)
    while True:
        try:
            return await act()
        except StoreError as error:
            if gives_up(error):
                raise
            await core.clock.sleep(core.jittered(next(pauses)))


def fails_alone(core: Core) -> Callable[[StoreError], bool]:
    """A `gives_up` for a single object: true once it has failed for `ALONE_PATIENCE` while the store answers others."""
    started = core.clock.boottime()
    return lambda error: is_no_outage(error) and core.clock.boottime() - started >= ALONE_PATIENCE


def is_no_outage(error: StoreError) -> bool:
    """Whether the store answers others, but refuses this request or fails for this object; that may last for ever."""
    return not is_outage(error)
