"""The scaler of a program that waits for machines: without it a cluster in which nothing runs would never start.

It looks after the pools as agents with `--provision` do, for as long as the program waits and nobody else has the role.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from fray_coordinator.core import Core

_RESIGN_SECONDS = 5.0
"""Who has waited for machines waits no longer until the role is given up: others see soon that its holder is silent."""


class WaitingScaler:
    """Has the scaler's role, unless another process has it, while somebody in this event loop waits for machines.

    Where the provider's library or a right is missing, it leaves the role to others; the pool's record says why.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: set[object] = set()
        self._scaling: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def during_wait(self) -> AsyncIterator[Callable[[], None]]:
        """During a wait: gives what is called once it is one for machines."""
        wait = object()
        try:
            yield partial(self.begin, wait)
        finally:
            await self.end(wait)

    def begin(self, wait: object) -> None:
        """Take part in scaling until `end` of the same wait."""
        self._waiting.add(wait)
        if self._scaling is None:
            self._scaling = asyncio.create_task(self._scale())

    async def end(self, wait: object) -> None:
        """End a wait, whether it began to be one for machines or not."""
        self._waiting.discard(wait)
        if not self._waiting:
            await self.close()

    async def close(self) -> None:
        """Give the role up."""
        scaling, self._scaling = self._scaling, None
        if scaling is not None:
            scaling.cancel()
            await asyncio.wait([scaling], timeout=_RESIGN_SECONDS)

    async def _scale(self) -> None:
        from fray_agents.provisioning.scaler import Scaler  # few programs wait for machines

        await Scaler(self._core, f"wait-{self._core.rng.token()}", steps_back=True).run()
