"""Runs the loops of an agent, none of which ends by itself while all is well."""

import asyncio
from collections.abc import Coroutine
from typing import Any


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
