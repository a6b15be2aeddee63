"""The loops of an agent, which do not end by themselves unless something fails, and their pauses."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait at most `seconds` until the event is set; whether it is."""
    try:
        async with asyncio.timeout(seconds):  # wait_for may swallow a cancellation that comes with the event
            return await event.wait()
    except TimeoutError:
        return False


async def run_until_first_ends(*loops: Coroutine[Any, Any, None]) -> None:
    """Run the loops together; when the first ends, cancel the others and raise its error, if any."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
