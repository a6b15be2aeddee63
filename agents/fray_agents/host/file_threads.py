"""Threads for long work with files: unpacking, copying and removing trees.

They are separate from the event loop's own threads, which requests to a store need to look up names and to read lists:
behind a queue of large copies a heartbeat would come too late.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")

THREADS = 4
"""Threads that work at once: with more the disk would only switch between them."""


async def in_file_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function in one of these threads, as `asyncio.to_thread` does in the loop's threads."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), partial(function, *args, **kwargs))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="fray-files")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads
