"""Claims pending jobs for an agent, one at a time, and waits between polls that find nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fray_agents.agent.held import HeldLease, HeldPlacement
from fray_agents.agent.index_search import IndexSearch
from fray_agents.agent.membership import Membership
from fray_agents.agent.pool_notices import PoolBell
from fray_agents.agent.problems import is_set_within
from fray_coordinator.concurrency import start_task
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused
from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.protocol.heartbeat import paced_interval
from fray_layouts.index_keys import PendingKey
from fray_layouts.states import HoldingPhase

CLAIM_WAIT = 10.0
"""Seconds that the search waits for a claim's outcome: longer than a slow store takes to answer."""

FAILED_CLAIM_PAUSE = 1.0
"""Seconds before a claim that raised is tried again: a refusal, for example, comes at once and may last."""

MAX_UNRESOLVED_CLAIMS = 8
"""Claims whose outcome may be unknown while the search goes on; with one more the search waits."""

DOORBELL_READS_PER_SECOND = 500.0
"""Upper bound on doorbell reads of all agents together: a tenth of the reads that a bucket serves at first."""

REMOTE_POLL_BACKOFF = (1.0, 1.5, 5.0)
LOCAL_POLL_BACKOFF = (0.1, 1.2, 1.0)
"""Waits between polls, in poll intervals: the first after something happened, the growth factor while nothing does, and
the longest. On local files polls are cheap, so a job that follows another is found within milliseconds."""

IDLE_POLL, IDLE_AFTER = 15.0, 900.0
"""The longest wait between polls, in poll intervals, of an agent that has had no work for so many seconds."""


@dataclass(slots=True)
class ClaimCounts:
    """The numbers of claims that were won and rejected so far."""

    won: int = 0
    rejected: int = 0


@dataclass(slots=True)
class Claimer:
    """Claims jobs that fit the agent's free resources.

    Attributes:
        member: the agent's membership.
        on_claimed: takes over a job once its claim is applied.
        on_ring: called when the pool's doorbell has rung.
        on_fatal: called if an exception leaves a claim without anyone who resolves it: the agent must end.
        counts: the claims so far.
        wake: set it to poll now.
    """

    member: Membership
    on_claimed: Callable[[HeldLease], Awaitable[None]]
    on_ring: Callable[[], None]
    on_fatal: Callable[[BaseException], None]
    counts: ClaimCounts = field(default_factory=ClaimCounts)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _bell: PoolBell = field(init=False)
    _search: IndexSearch = field(init=False)
    _pause_intervals: float = 1.0
    _worked_at: float = field(init=False)
    _unresolved: set[asyncio.Task[bool]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._worked_at = self._core.clock.boottime()
        self._bell = PoolBell(self.member, self.on_ring)
        self._search = IndexSearch(self.member, self._bell)

    @property
    def _core(self) -> Core:
        return self.member.core

    async def run(self) -> None:
        """Look for work for ever."""
        try:
            while True:
                worked = False
                with self.member.problems.tolerated("look for work"):
                    worked = self.member.may_claim() and await self._poll()
                await self._pause(worked)
        finally:
            for claim in self._unresolved:
                claim.cancel()

    async def _pause(self, worked: bool) -> None:
        """Wait for the next poll: the longer nothing has happened, the longer the wait."""
        first, growth, longest = (
            LOCAL_POLL_BACKOFF if self._core.store.local else (*REMOTE_POLL_BACKOFF[:2], self._longest_pause())
        )
        if worked or self.member.leases.lists_any():
            self._worked_at = self._core.clock.boottime()
        self._pause_intervals = first if worked else min(self._pause_intervals * growth, longest)
        wait = self._core.jittered(self._core.settings.poll_interval * self._pause_intervals)
        if not await is_set_within(self.wake, wait):
            return
        self.wake.clear()
        if self._core.store.local:
            self._pause_intervals = first

    def _longest_pause(self) -> float:
        poll, idle = self._core.settings.poll_interval, self._core.clock.boottime() - self._worked_at
        longest = IDLE_POLL if idle > IDLE_AFTER else REMOTE_POLL_BACKOFF[2]
        return paced_interval(longest * poll, self.member.live_agents, DOORBELL_READS_PER_SECOND) / poll

    async def _poll(self) -> bool:
        """Claim what fits now; whether anything was claimed. A job that needs no core fits even if no core is free."""
        await self._bell.poll()
        if not await self._search.begin():
            return False
        claimed = 0
        while self.member.may_claim() and (found := await self._search.next()) is not None:
            claimed += await self.claim(found.entry, ends_before=found.ends_before)
        self._search.end()
        return claimed > 0

    async def claim(
        self, entry: PendingKey, room: HeldPlacement | None = None, ends_before: float | None = None
    ) -> bool:
        """Try to claim one entry; whether the claim is known to be applied within `CLAIM_WAIT`.

        If the outcome is not known by then, it is asked for again in the background. Until it is known, the claim stays
        listed but takes no room, and the search goes on.

        room: the reservation in whose bundles it is to run; None: the host's own room. ends_before: as in `try_claim`.
        """
        lease = self.member.leases.add(entry, room)
        claim = start_task(self._resolve(lease, ends_before), self.on_fatal)  # the claim stays listed
        self._unresolved.add(claim)
        claim.add_done_callback(self._unresolved.discard)
        await asyncio.wait([claim], timeout=CLAIM_WAIT if len(self._unresolved) <= MAX_UNRESOLVED_CLAIMS else None)
        if claim.done():
            return claim.result()
        lease.idle = True
        return False

    async def _resolve(self, lease: HeldLease, ends_before: float | None) -> bool:
        entry = lease.entry
        await self.member.promise_for_leases()
        answer = await self._claim_until_known(entry, ends_before)
        self.counts.rejected += answer.rejections
        if isinstance(answer, Claimed):
            self.counts.won += 1
            if lease.room is None:
                self._search.claimed()
            lease.job, lease.phase = answer.job, HoldingPhase.RUNNING
            self.member.leases.use_again(lease)
            await self.on_claimed(lease)
            return True
        self.member.leases.remove(lease)
        if lease.room is None:
            self._search.not_claimed(entry, answer.until)
        return False

    async def _claim_until_known(self, entry: PendingKey, ends_before: float | None) -> Claimed | NotClaimed:
        """The claim's outcome, retried through any error: the claim stays listed until its outcome is known."""
        doing, again, in_doubt = f"claim {entry.job}", False, False
        while True:
            with self.member.problems.tolerated(doing):
                if again:
                    await self._core.clock.sleep(self._core.jittered(FAILED_CLAIM_PAUSE))
                again = True
                try:
                    me = self.member.record
                    return await try_claim(self._core, entry, me.id, me.host, in_doubt, me, ends_before)
                except BadRecord as error:  # one malformed record must not keep the agent from all other jobs
                    return self._give_up_claim(entry, error)
                except StoreRefused as error:
                    if not in_doubt:
                        return self._give_up_claim(entry, error)
                    raise
                except Exception:
                    in_doubt = True
                    raise

    def _give_up_claim(self, entry: PendingKey, error: Exception) -> NotClaimed:
        self.member.problems.warnings.warn("%s is not claimed: %s", entry.job, error)
        return NotClaimed(self._core.now() + self._core.settings.repair_interval, 0)
