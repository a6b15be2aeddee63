"""Waiting for the store to do what must be done, through outages and refusals."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fray_coordinator.backoff import STORE_PAUSES, backoff
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, is_outage

T = TypeVar("T")

ALONE_PATIENCE = 120.0
"""Seconds for which a job keeps its room while objects that it needs are not answered for, and others are: two calls,
each of the store's patience. Then it is tried on another host."""


async def persist(
    core: Core, act: Callable[[], Awaitable[T]], gives_up: Callable[[StoreError], bool] = lambda error: False
) -> T:
    """Repeat `act` until the store does it: an outage ends, and so does a refusal.

    gives_up: asked after each failure whether to raise it instead.
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
    """A `gives_up` for one object of a job: the store has not given it for long, and answers for others."""
    begun = core.clock.boottime()
    return lambda error: is_no_outage(error) and core.clock.boottime() - begun >= ALONE_PATIENCE


def is_no_outage(error: StoreError) -> bool:
    """Whether the store answers, but refuses this, or fails for this object only: it may last for ever."""
    return not is_outage(error)
