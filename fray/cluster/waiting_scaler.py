"""The scaler of a program that waits for machines. Without it, a cluster without agents would never start.

While the program waits and no other process scales them, it scales the pools of the file `fray.yaml` in its current
directory, and those that it has set itself. It leaves all other pools alone: it runs nothing, and uses none of its
user's rights, because of what others wrote into the bucket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from fray_coordinator.concurrency import keep_running, start_task
from fray_coordinator.core import Core
from fray_layouts.errors import InvalidInput

log = logging.getLogger("fray")

_RESIGN_SECONDS = 5.0
"""Seconds that the end of a wait takes at most to give up the role. If that fails, others take it over later."""


class WaitingScaler:
    """Holds the scaler's role while code in this event loop waits for machines, unless another process holds it.

    If the provider's library or a permission is missing, it leaves the role to others, and the pool's record says why.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: set[object] = set()
        self._scaling: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def during_wait(self) -> AsyncIterator[Callable[[], None]]:
        """The block of a wait. It gives a function to call once the wait turns out to be one for machines."""
        wait = object()
        try:
            yield partial(self.begin, wait)
        finally:
            await self.end(wait)

    def begin(self, wait: object) -> None:
        """Scale the pools until `end` is called for the same wait."""
        self._waiting.add(wait)
        if self._scaling is None:
            self._scaling = start_task(keep_running(self._scale))

    async def end(self, wait: object) -> None:
        """End a wait, whether `begin` was called for it or not."""
        self._waiting.discard(wait)
        if not self._waiting:
            await self.close()

    async def close(self) -> None:
        """Give up the role."""
        scaling, self._scaling = self._scaling, None
        if scaling is not None:
            scaling.cancel()
            await asyncio.wait([scaling], timeout=_RESIGN_SECONDS)

    async def _scale(self) -> None:
        from fray.machine_pools import described_pools  # imported late: few programs wait for machines
        from fray_agents.provisioning.scaler import Scaler

        try:
            scope = described_pools(self._core.root)
        except InvalidInput as error:
            log.warning("no pool is scaled by this program: %s", error)
            return
        if scope.pools:
            await Scaler(self._core, f"wait-{self._core.rng.token()}", scope, steps_back=True).run()
