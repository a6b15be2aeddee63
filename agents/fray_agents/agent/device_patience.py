"""Waits for accelerators that another process uses, and gives up if it uses them for long."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fray_coordinator.clock import Clock

T = TypeVar("T")

IDLE_PATIENCE = 10.0
"""Seconds to wait for free devices: a driver needs some to clean up after a killed process, and tools open TPU chips
briefly."""

BUSY_RECHECK_INTERVAL = 0.5
"""Seconds between two checks within `IDLE_PATIENCE`: a check of TPU chips takes some 10 ms, and one of GPUs runs
nvidia-smi twice."""


async def lasting_trouble(clock: Clock, check: Callable[[], Awaitable[T]]) -> T:
    """Repeat a check until it finds no trouble, at most for `IDLE_PATIENCE`; returns what the last check found.

    check: returns what is wrong with the devices; something empty if they can be used.
    """
    give_up_at = clock.boottime() + IDLE_PATIENCE
    while (trouble := await check()) and clock.boottime() < give_up_at:
        await clock.sleep(BUSY_RECHECK_INTERVAL)
    return trouble
