"""Runs an aiohttp application on a free port of 127.0.0.1, in a thread of its own, until the `with` ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")


class Served:
    """An application that is served at `url`."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the server's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=200)


@contextmanager
def serving(app: web.Application) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port: int = runner.addresses[0][1]
        return port

    port = asyncio.run_coroutine_threadsafe(start(), loop).result(timeout=200)
    served = Served(f"http://127.0.0.1:{port}", loop)
    try:
        yield served
    finally:
        served.run(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
