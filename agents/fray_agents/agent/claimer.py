"""Finding work: the doorbell, the pending index, and one claim at a time.

The doorbell is read often and cheaply, but more rarely in large fleets, where someone always looks soon. The index is
listed when the bell rang, when what was listed is used up and there is more, and on the repair interval. Behind what
does not fit, each listing goes on where the last one came to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fray_agents.agent.candidates import STALE, Candidates
from fray_agents.agent.index_cursor import IndexCursor
from fray_agents.agent.leases import HeldLease, Leases
from fray_agents.agent.problems import AgentProblems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused
from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.protocol.heartbeat import paced_interval
from fray_coordinator.protocol.scheduling import HostKind, listing_start
from fray_coordinator.store.interface import NotModified, Version
from fray_layouts.object_keys import PendingKey, PoolKeys
from fray_layouts.states import HoldingPhase

PAGE_SIZE = 1000
PAGES_PER_LOOK = 4
"""So many pages are listed in a row to find something that fits, behind much that does not."""

PAGES_PER_SECOND = 200.0
"""What a fleet lists at most without a bell where nothing fits any of its hosts, all agents together."""

STALE_LIMIT = 12
"""So many stale entries in a row have cost as much as a listing, which shows what is left; so many again end a look."""

STALE_TRIES_PER_SECOND = 1000.0
"""What a fleet tries at most after looks that met little but stale entries, all agents together: the queue runs dry
then, and what was claimed stays listed until its holder's next beat. A bell is answered all the same."""

CLAIM_WAIT = 10.0
MAX_UNRESOLVED_CLAIMS = 8
"""After so many seconds a claim that is not resolved, one of so many at most, keeps the search waiting no longer."""

DOORBELL_READS_PER_SECOND = 500.0
LISTINGS_PER_SECOND = 50.0
"""What a fleet that finds no work asks of the store at most, all agents together."""

REMOTE_POLL_BACKOFF = (1.0, 1.5, 5.0)
LOCAL_POLL_BACKOFF = (0.1, 1.2, 1.0)
"""Waits between looks, in poll intervals: the first after something happened, its growth while nothing does, the
longest. Where looks are free, a job submitted right after another one is found within milliseconds."""


@dataclass(slots=True)
class ClaimCounts:
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
        fleet: live agents, as the last pass saw them.
        troubles: of the agent.
    """

    core: Core
    ledger: Leases
    agent: str
    host: str
    pool: str
    kind: HostKind
    may_claim: Callable[[], bool]
    on_claimed: Callable[[HeldLease], Awaitable[None]]
    pool_slots: Callable[[], int]
    fleet: Callable[[], int]
    troubles: AgentProblems
    tally: ClaimCounts = field(default_factory=ClaimCounts)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _bell: Version | None = None
    _candidates: Candidates = field(init=False)
    _walk: IndexCursor = field(default_factory=IndexCursor)
    _last: str | None = None
    _pages: int = 0
    _at_head: bool = False
    _stale: int = 0
    _listed_at: float | None = None
    _rests_until: float = 0.0
    _quiet: float = 1.0
    _resolving: set[asyncio.Task[bool]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._candidates = Candidates(self.kind, self.ledger.capacity)

    async def run(self) -> None:
        """Look for work for ever."""
        try:
            while True:
                worked = False
                with self.troubles.survived("look for work"):
                    worked = self.may_claim() and await self._look()
                await self._pause(worked)
        finally:
            for claim in self._resolving:
                claim.cancel()

    async def _pause(self, worked: bool) -> None:
        """Wait for the next look: longer the longer nothing happened."""
        first, growth, longest = (
            LOCAL_POLL_BACKOFF if self.core.store.local else (*REMOTE_POLL_BACKOFF[:2], self._longest())
        )
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

    def _longest(self) -> float:
        poll = self.core.settings.poll_interval
        return paced_interval(REMOTE_POLL_BACKOFF[2] * poll, self.fleet(), DOORBELL_READS_PER_SECOND) / poll

    async def _look(self) -> bool:
        """One look; whether anything was claimed."""
        if self.ledger.free().cpu <= 0 and self.ledger.held:
            return False
        rang = await self._bell_rang()
        if due := self._repair_is_due():
            self._candidates.try_everything_again()
        if rang or due:
            await self._list()
        elif self.core.clock.boottime() < self._rests_until:
            return False
        elif not self._candidates.untried:
            self._pages = 0
        claimed = self._stale = 0
        while self.may_claim() and self._stale < 2 * STALE_LIMIT and (entry := await self._next()) is not None:
            claimed += await self.claim(entry)
        if self._stale >= 2 * STALE_LIMIT:
            self._pass_stale()
        if self._stale >= STALE_LIMIT:
            self._rest(self._stale, STALE_TRIES_PER_SECOND)
        elif self._pages == PAGES_PER_LOOK and not self._candidates.untried:
            self._rest(PAGES_PER_LOOK, PAGES_PER_SECOND)
        return claimed > 0

    def _rest(self, requests: int, a_second: float) -> None:
        """Make no look without a bell until the whole fleet, each making so many, keeps to that rate."""
        self._rests_until = self.core.clock.boottime() + paced_interval(0.0, requests * self.fleet(), a_second)

    async def _bell_rang(self) -> bool:
        """Whether it rang, as far as can be told: who cannot read it lists on the repair interval all the same."""
        answer = None
        with self.troubles.survived("read the doorbell"):
            answer = await self.core.store.get_if_changed(PoolKeys.doorbell(self.pool), self._bell, patience=0.0)
        if answer is None or isinstance(answer, NotModified):
            return False
        self._bell = answer.version
        return True

    def _repair_is_due(self) -> bool:
        return self._listed_at is None or self.core.clock.boottime() - self._listed_at >= self._interval()

    def _interval(self) -> float:
        return paced_interval(self.core.settings.repair_interval, self.fleet(), LISTINGS_PER_SECOND)

    async def _list(self) -> None:
        """List the index from its head, or within the pool's slots from it."""
        self._listed_at, self._pages = self.core.clock.boottime(), 1
        self._walk.begins_anew(self._listed_at, self._interval())
        keys = await self._page(None)
        if self._last is not None and not self._walk.behind(self.ledger.free()):
            begin = listing_start(keys[0], keys[-1], len(keys), self.pool_slots(), self.core.rng.random())
            if begin and (within := await self._page(begin)):
                keys, self._last = within, ""  # where nothing of these fits, it looks from the head on
        self._candidates.listed(keys)
        self._at_head = True

    async def _page(self, after: str | None) -> list[str]:
        """One listing; `_last` is where the next one goes on, None where there is no more."""
        rows = await self.core.store.list(PendingKey.prefix(self.pool), after, PAGE_SIZE)
        self._last = rows[-1].key if len(rows) == PAGE_SIZE else None
        return [row.key for row in rows]

    async def _list_on(self, last: str) -> None:
        """List one page more, behind `last` and what this agent has passed."""
        free, self._at_head = self.ledger.free(), False
        keys = await self._page(max(last, self._walk.behind(free)) or None)
        fits_ever = self._candidates.listed_too(keys, free if self._walk.waits_for_room else None)
        if keys and not self._candidates.fits(free):
            self._walk.passed(keys[-1], len(keys), free, not fits_ever)

    async def _next(self) -> PendingKey | None:
        """The entry to try now, if any fits what is free."""
        if self._stale == STALE_LIMIT and self._candidates.untried and self._at_head:
            await self._leave_head()
        while (entry := self._fitting()) is None and self._last is not None and self._may_list_on():
            self._pages += 1
            await self._list_on(self._last)
        return entry

    async def _leave_head(self) -> None:
        """So many entries at the head were stale: go on behind what was passed, or see what is left by now."""
        if self._last and self._last <= self._walk.behind(self.ledger.free()):
            self._candidates.drop()
        else:
            await self._list()

    def _pass_stale(self) -> None:
        """Others have been where so many were stale in a row, or nobody removes them: the next look begins behind."""
        free = self.ledger.free()
        if self._last and self._last > self._walk.behind(free):
            self._walk.passed(self._last, PAGE_SIZE, free, True)
            self._candidates.drop()

    def _may_list_on(self) -> bool:
        return self._pages < PAGES_PER_LOOK and self.ledger.free().cpu > 0

    def _fitting(self) -> PendingKey | None:
        """A candidate that fits and is not in this agent's hands.

        The more stale ones were met in a row, the further ahead it looks: others have been this far.
        """
        while True:
            free, now, width = self.ledger.free(), self.core.now(), max(self.pool_slots(), 2**self._stale)
            entry = self._candidates.next(free, now, width, self.core.rng.random())
            held = self.ledger.held.get(entry.job) if entry else None
            if entry is None or held is None:
                return entry
            if held.attempt < entry.attempt:  # the attempt that is just being put back
                self._candidates.put_off(entry, now + self.core.settings.poll_interval)

    async def claim(self, entry: PendingKey) -> bool:
        """Try one entry; whether it was claimed, as far as is known soon.

        A claim whose outcome is not known is asked for again until it is: it stays listed, but takes no room, and the
        search goes on.
        """
        held = self.ledger.add(entry)
        claim = asyncio.create_task(self._resolve(held, entry))
        self._resolving.add(claim)
        claim.add_done_callback(self._resolving.discard)
        await asyncio.wait([claim], timeout=CLAIM_WAIT if len(self._resolving) <= MAX_UNRESOLVED_CLAIMS else None)
        if claim.done():
            return claim.result()
        held.idle = True
        return False

    async def _resolve(self, held: HeldLease, entry: PendingKey) -> bool:
        answer = await self._outcome(entry)
        self.tally.rejected += answer.rejections
        if isinstance(answer, Claimed):
            self.tally.won += 1
            self._stale = 0
            held.job, held.phase = answer.job, HoldingPhase.RUNNING
            self.ledger.use_again(held)
            await self.on_claimed(held)
            return True
        self.ledger.remove(held)
        self._stale += answer.until is None
        self._candidates.put_off(entry, STALE if answer.until is None else answer.until)
        return False

    async def _outcome(self, entry: PendingKey) -> Claimed | NotClaimed:
        """What became of the claim, whatever goes wrong on the way: until that is known it stays listed."""
        doing, again, in_doubt = f"claim {entry.job}", False, False
        while True:
            with self.troubles.survived(doing):
                if again:
                    await self.core.clock.sleep(self.core.jittered(1.0))
                again = True
                try:
                    return await try_claim(self.core, entry, self.agent, self.host, in_doubt)
                except BadRecord as error:  # one odd object must not keep the agent from all the others
                    return self._left_alone(entry, error)
                except StoreRefused as error:
                    if not in_doubt:
                        return self._left_alone(entry, error)
                    raise
                except Exception:
                    in_doubt = True
                    raise

    def _left_alone(self, entry: PendingKey, error: Exception) -> NotClaimed:
        self.troubles.warnings.warn("%s is not claimed: %s", entry.job, error)
        return NotClaimed(self.core.now() + self.core.settings.repair_interval, 0)
