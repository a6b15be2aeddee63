"""Checks that the other members of a gang live, before a replica's failure is counted as the job's.

When a host dies, the replicas on other hosts fail at once because their connections break, long before anybody can tell
that the host is dead. So a member that is about to write a failure first checks the members without a stored exit.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import chain

from fray_coordinator.backoff import backoff
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.jobs import commit
from fray_coordinator.jobs.commit import ended_replicas
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, is_fenced, with_bounded_interval
from fray_coordinator.protocol.placements.gang_end import runs_gang
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, JobRecord, PlacementMember
from fray_layouts.states import HoldingPhase

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 0.5
"""Seconds between the first and the second check of the others, and the longest pause between two checks."""

BEATS_IN_FLIGHT = 1.0
"""Seconds after a failure in which a heartbeat may still be applied that an agent sent before it died."""


class PeerAnswer(Enum):
    """The outcome of asking an agent at its endpoint whether it is alive."""

    LIVES = auto()
    """It relies on its leases, and none of its replicas has ended without a stored exit. An agent that was frozen and
    just woke does not answer this, because its replica's deadline may have passed meanwhile."""
    GONE = auto()
    """Nobody listens there, or another process does, so the agent has ended."""
    SILENT = auto()
    """No conclusion: the agent is frozen, cut off, or about to say more; its host is dead; or the network keeps others
    from asking."""


AskPeer = Callable[[HintEndpoint], Awaitable[PeerAnswer]]
"""Asks the agent at an endpoint."""


@dataclass(slots=True)
class GangPeers:
    """The other members of one running attempt, as one member examines them after its replica's failure.

    Attributes:
        job: the record at the attempt.
        agent: id of the member that examines the others.
        network: its network; agents of one network can reach one another.
        ask: asks an agent directly.
    """

    core: Core
    job: Stored[JobRecord]
    agent: str
    network: str
    ask: AskPeer
    _beats: dict[str, int] = field(default_factory=dict)
    _alive: set[str] = field(default_factory=set)
    _over: bool = False

    async def settle(self) -> None:
        """Return once each other member has stored its exits, is known to live, or was written off with the attempt."""
        if holders_of(self.job.record) == [self.agent]:
            return
        clock, attempt = self.core.clock, self.job.record.attempt
        spread = self.job.record.spec.replicas / commit.WRITES_A_SECOND  # all members of a large gang may ask
        begun, later = clock.boottime(), (max(pause, spread) for pause in backoff(FIRST_PAUSE, LONGEST_PAUSE))
        for pause in chain([self.core.rng.uniform(0.0, spread)], later):
            await clock.sleep(self.core.jittered(pause))
            now = await self.core.records.reread(self.job)
            if now is None or not runs_gang(now.record, attempt, self.agent):
                return
            waited = clock.boottime() - begun
            silent = await self._silent(now.record)
            await map_concurrently(silent, partial(self._check, now, waited))
            if self._over or all(peer.agent in self._alive for peer in silent):
                return

    async def _silent(self, job: JobRecord) -> list[PlacementMember]:
        """The other members that have not stored all of their exits and are not known to live."""
        stored = await ended_replicas(self.core, job)
        members = job.placement.members if job.placement is not None else []
        others = [peer for peer in members if peer.agent != self.agent and peer.agent not in self._alive]
        return [peer for peer in others if not all(replica in stored for replica in peer.bundles)]

    async def _check(self, job: Stored[JobRecord], waited: float, peer: PlacementMember) -> None:
        found = record_of(await self.core.records.read(AgentKeys.key(peer.agent), AgentRecord, one_of_many=True))
        if found is None or is_fenced(found):
            await self._write_off(job, peer)
            return
        answer = await self._answer(found)
        if answer is PeerAnswer.LIVES or self._has_beaten(found, waited):
            self._alive.add(peer.agent)
        elif answer is PeerAnswer.GONE or self._is_silent(found, waited):
            await self._write_off(job, peer, "has died, or does not answer any more")

    async def _write_off(self, job: Stored[JobRecord], peer: PlacementMember, why: str = "died") -> None:
        now = await commit.end_without(self.core, job, peer.agent, why)
        self._over = now is None or not runs_gang(now.record, job.record.attempt, self.agent)

    def _has_beaten(self, peer: AgentRecord, waited: float) -> bool:
        """Whether a heartbeat since the failure lists replicas that are still running."""
        if waited < BEATS_IN_FLIGHT or not self._was_raised(peer):
            return False
        holding = peer.holdings.get(self.job.record.id)
        return holding is not None and holding.phase != HoldingPhase.ENDING

    async def _answer(self, peer: AgentRecord) -> PeerAnswer:
        if peer.hint_endpoint is None or not peer.inbound or peer.network != self.network:
            return PeerAnswer.SILENT
        return await self.ask(peer.hint_endpoint)

    def _is_silent(self, peer: AgentRecord, waited: float) -> bool:
        """Whether it made no heartbeat for as long as a dead agent, even if nobody has declared it dead."""
        longest = DEATH_INTERVALS * with_bounded_interval(peer, self.core.settings).interval
        return waited > longest and not self._was_raised(peer)

    def _was_raised(self, peer: AgentRecord) -> bool:
        """Whether its heartbeat has advanced since this object first read it."""
        return peer.beat > self._beats.setdefault(peer.id, peer.beat)
