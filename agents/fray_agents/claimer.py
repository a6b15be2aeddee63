"""Finding work: the doorbell, the pending index, and one claim at a time.

The doorbell is read often and cheaply; the index is listed when the bell rang, when what was listed is used
up and there is more, and on the repair interval.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fray_coordinator.claims import Claimed, try_claim
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol.schedule import order_to_try, shortage
from fray_coordinator.store.api import NotModified
from fray_layouts.names import Pending, Pools

from fray_agents.ledger import Held, Ledger

LIST_LIMIT = 1000
STALE = math.inf
"""When to try an entry again whose job is past that attempt: not while it is listed, but for the repair interval."""

PAID_PACE = (1.0, 1.5, 5.0)
FREE_PACE = (0.1, 1.2, 1.0)
"""Waits between looks, in poll intervals: the first after something happened, its growth while nothing does, the
longest. Where looks are free, a job submitted right after another one is found within milliseconds."""


@dataclass(slots=True)
class Tally:
    """What claiming cost so far."""

    won: int = 0
    rejected: int = 0


@dataclass(slots=True)
class Claimer:
    """Claims what fits for one agent.

    Attributes:
        may_claim: whether the agent may take work right now (trust, draining, trouble).
        on_claimed: takes over a job whose claim was applied.
        pool_slots: the one-core tasks that the pool can run at once, as the last pass saw it.
    """

    core: Core
    ledger: Ledger
    agent: str
    host: str
    pool: str
    preemptible: bool
    may_claim: Callable[[], bool]
    on_claimed: Callable[[Held], Awaitable[None]]
    pool_slots: Callable[[], int]
    tally: Tally = field(default_factory=Tally)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _bell: str = ""
    _candidates: dict[str, Pending] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _more: bool = False
    _overtaken: str = ""
    _listed_at: float | None = None
    _quiet: float = 1.0

    async def run(self) -> None:
        """Look for work for ever."""
        while True:
            try:
                worked = self.may_claim() and await self._look()
            except StoreUnavailable:
                worked = False
            await self._pause(worked)

    async def _pause(self, worked: bool) -> None:
        """Wait for the next look: longer the longer nothing happened."""
        first, growth, longest = FREE_PACE if self.core.store.local else PAID_PACE
        self._quiet = first if worked else min(self._quiet * growth, longest)
        try:
            wait = self.core.jittered(self.core.settings.poll_interval * self._quiet)
            async with asyncio.timeout(wait):  # wait_for may swallow a cancellation that comes with the wake
                await self.wake.wait()
        except TimeoutError:
            return
        self.wake.clear()
        if self.core.store.local:
            self._quiet = first

    async def _look(self) -> bool:
        """One look; whether anything was claimed."""
        if self.ledger.free().cpu <= 0 and self.ledger.held:
            return False
        rang = await self._bell_rang()
        if due := self._repair_is_due():
            self._not_before.clear()
        if rang or due:
            await self._list()
        claimed = 0
        while self.may_claim() and (entry := self._next()) is not None:
            claimed += await self._claim(entry)
            if self._more and self._candidates.keys() <= self._not_before.keys():
                await self._list()
        return claimed > 0

    async def _bell_rang(self) -> bool:
        answer = await self.core.store.get_if_changed(Pools.doorbell(self.pool), self._bell)
        if answer is None or isinstance(answer, NotModified):
            return False
        self._bell = answer.version
        return True

    def _repair_is_due(self) -> bool:
        now = self.core.clock.boottime()
        return self._listed_at is None or now - self._listed_at >= self.core.settings.repair_interval

    async def _list(self) -> None:
        self._listed_at = self.core.clock.boottime()
        rows = await self.core.store.list(Pending.prefix(self.pool), limit=LIST_LIMIT)
        entries = [entry for entry in (Pending.parse(row.key) for row in rows) if entry is not None]
        self._candidates = {entry.key(): entry for entry in entries if not self._holds(entry)}
        self._not_before = {key: t for key, t in self._not_before.items() if key in self._candidates}
        self._more = len(rows) == LIST_LIMIT
        self._overtaken = ""

    def _holds(self, entry: Pending) -> bool:
        """Whether this very attempt is held; a later one of a job that is just being put back is a candidate."""
        held = self.ledger.held.get(entry.job)
        return held is not None and held.entry.attempt >= entry.attempt

    def _next(self) -> Pending | None:
        """The entry to try now, if any fits what is free.

        Where one was stale, others have claimed most of what comes before it: that is tried last.
        """
        fitting = self._fitting()
        ahead = [entry for entry in fitting if entry.key() > self._overtaken]
        order = order_to_try(ahead or fitting, self.pool_slots(), self.core.chance.random())
        return order[0] if order else None

    def _fitting(self) -> list[Pending]:
        free, now = self.ledger.free(), self.core.now()
        return [
            entry
            for key, entry in self._candidates.items()
            if entry.job not in self.ledger.held
            and self._not_before.get(key, 0.0) <= now
            and not shortage(entry.shape, free, self.preemptible)
        ]

    async def _claim(self, entry: Pending) -> bool:
        """Try one entry. A claim whose outcome is not known is asked for again until it is: it stays listed."""
        held = self.ledger.add(entry)
        in_doubt = False
        while True:
            try:
                answer = await try_claim(self.core, entry, self.agent, self.host, in_doubt)
                break
            except StoreUnavailable:
                in_doubt = True
                await self.core.clock.sleep(self.core.jittered(1.0))
            except BaseException:
                self.ledger.remove(held)
                raise
        self.tally.rejected += answer.rejections
        if isinstance(answer, Claimed):
            self.tally.won += 1
            self._candidates.pop(entry.key(), None)
            held.job, held.phase = answer.job, "running"
            await self.on_claimed(held)
            return True
        self.ledger.remove(held)
        if answer.until is None:
            self._overtaken = max(self._overtaken, entry.key())
        self._not_before[entry.key()] = STALE if answer.until is None else answer.until
        return False
