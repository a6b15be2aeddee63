"""Runs a member's replicas of a gang, from the record that starts them to the write of the gang's end.

Where agents reach one another, it notices early that the next member's agent has died or fallen silent. Each member of
a running gang asks the agent of the member after it, without a request to the store. Otherwise a death that makes no
other replica fail is noticed only when the agent counts as dead, some five heartbeats later. An agent that has ended is
noticed within two seconds. One that does not answer may be frozen or cut off, or its host may be dead: it counts as
lost only once its heartbeat is overdue too. If it is alive after all, one attempt is lost, and the next attempt waits
until its replica is gone. A gang that is to be stopped waits for the replica's exit, or until the agent counts as dead:
its end says that nothing runs any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from msgspec.structs import replace

from fray_agents.agent.attempt_runner import describe_exit
from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.membership import Membership
from fray_agents.agent.replica_runner import LeftUnwritten, ReplicaRunner, host_failed, until_written
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.jobs.commit import WRITES_A_SECOND, end_member, end_without, leave_gang, store_exit
from fray_coordinator.jobs.gang_peers import AskPeer, GangPeers, PeerAnswer
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.heartbeat import is_fenced, with_bounded_interval
from fray_coordinator.protocol.placements.gang_end import is_own_failure, runs_gang
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, JobRecord, PlacementMember, ReplicaExit
from fray_layouts.states import ExitKind, HoldingPhase

log = logging.getLogger("fray")

ASK_INTERVAL = 0.7
"""Average seconds between two questions."""

REFUSALS = 2
"""Refused connections in a row after which the agent counts as ended. It must have answered before, because something
between the hosts may refuse connections to live agents."""

SILENCES = 3
"""Unanswered questions in a row, of some 2.7 s each, after which the agent's heartbeat is read. It must have answered
before, as above."""

BEAT_DELAY = 2.0
"""Seconds that a live agent's heartbeat may come later than promised: the time of a repeated write."""


async def watch_neighbour(core: Core, job: Stored[JobRecord], own: AgentRecord, ask: AskPeer) -> bool:
    """Ask the next member's agent until it has ended, and then write the consequences for the gang.

    Args:
        job: the record at the attempt that runs.
        own: the record of the agent that asks.

    Returns:
        Whether the attempt has ended; False also if there is no agent to ask.

    Raises:
        StoreError, BadRecord: a record could not be read or written. The agent will still be declared dead.
    """
    peer = neighbour(job.record, own.id)
    if peer is None or own.hint_endpoint is None:
        return False
    await core.clock.sleep(core.jittered(ASK_INTERVAL))
    endpoint = await _endpoint(core, peer, own.network)
    if endpoint is None:
        return False
    answer, times, has_answered = PeerAnswer.SILENT, 0, False
    while not (has_answered and await _is_lost(core, peer, answer, times)):
        before, answer = answer, await ask(endpoint)
        times = times + 1 if answer is before else 1
        has_answered |= answer is PeerAnswer.LIVES
        await core.clock.sleep(core.jittered(ASK_INTERVAL))
    gone = answer is PeerAnswer.GONE
    why = "died" if gone else "does not answer any more"
    now = await end_without(core, job, peer.agent, why, may_run=not gone)
    return now is None or not runs_gang(now.record, job.record.attempt, own.id)


async def _is_lost(core: Core, peer: PlacementMember, answer: PeerAnswer, times: int) -> bool:
    """Whether the member's agent has ended, or owes answers and a heartbeat. times: equal last answers in a row."""
    if answer is not PeerAnswer.SILENT or times < SILENCES:
        return answer is PeerAnswer.GONE and times >= REFUSALS
    with suppress(StoreError, BadRecord):  # its heartbeat is unknown then
        found = await core.records.read(AgentKeys.key(peer.agent), AgentRecord, one_of_many=True)
        if found is None or is_fenced(found.record):
            return True
        interval = with_bounded_interval(found.record, core.settings).interval
        return core.now() - found.updated > interval + BEAT_DELAY
    return False


def neighbour(job: JobRecord, agent: str) -> PlacementMember | None:
    """The member after `agent` in the gang's list, which wraps round; None if there is no other."""
    members = job.placement.members if job.placement is not None else []
    places = [place for place, member in enumerate(members) if member.agent == agent]
    if not places or len(members) == 1:
        return None
    return members[(places[0] + 1) % len(members)]


async def _endpoint(core: Core, peer: PlacementMember, network: str) -> HintEndpoint | None:
    """The endpoint where the member's agent receives hints, if it does so in this network."""
    found = record_of(await core.records.read(AgentKeys.key(peer.agent), AgentRecord, one_of_many=True))
    return found.hint_endpoint if found is not None and found.inbound and found.network == network else None


LEAVING_PATIENCE = 3.0
"""Seconds that an agent which leaves waits for the store to take the end of a gang's attempt, before it ends its
replicas. On most clouds it has some 30 s in all, and the replicas need their grace."""


@dataclass(slots=True)
class GangRunner:
    """Runs the replicas of gangs that this agent is a member of, and writes how they ended.

    Attributes:
        member: the agent's membership.
        replicas: runs their tasks.
        ask: asks another agent directly whether it lives.
        notify_pass: wakes the agent that runs the pass, which then wakes the other members.
    """

    member: Membership
    replicas: ReplicaRunner
    ask: AskPeer
    notify_pass: Callable[[], None]

    @property
    def _core(self) -> Core:
        return self.member.core

    async def run(self, held: HeldPlacement) -> dict[int, ReplicaExit]:
        """Run the replicas until all have ended and the consequences of their exits are written.

        held: with the record that started the gang.

        Returns:
            The exits that have no consequences, by replica; call `store_late` with them once the room is free again.

        Raises:
            Exception: an end could not be written. The gang is still held, so the agent must exit.
        """
        attempt = _GangAttempt(held, cast("Stored[JobRecord]", held.record))
        watch = asyncio.create_task(self._watch_neighbour(attempt))
        try:
            await map_concurrently(held.bundles, lambda bundle: self._run_replica(attempt, bundle), len(held.bundles))
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        if self.member.leaving:  # the agent does not live to store them later
            await self._store_for_people(attempt.job.record, attempt.late)
            return {}
        return attempt.late

    async def store_late(self, job: JobRecord, exits: Mapping[int, ReplicaExit]) -> None:
        """Store the exits that `run` returned, which are kept for people only.

        When a large gang is ended, all its members have such exits at once, just when its next attempt gathers their
        votes. So each waits a random time, and none keeps its room while it waits.

        job: the record at the attempt that was run.
        """
        if exits:
            await self._core.clock.sleep(self._core.rng.uniform(0.0, job.spec.replicas / WRITES_A_SECOND))
            await self._store_for_people(job, exits)

    async def _store_for_people(self, job: JobRecord, exits: Mapping[int, ReplicaExit]) -> None:
        for replica, left in exits.items():
            with suppress(StoreError, BadRecord):  # the attempt is over, and nothing else depends on these exits
                await store_exit(self._core, job, replica, left)

    async def leave(self, held: HeldPlacement, grace: float) -> None:
        """Leave a gang that runs: first the attempt ends as preempted, then its replicas here end.

        If the replicas ended first, they would break the connections of the others, whose failures would then be
        counted instead. If there are no other members, the replicas just end, as a single job does: one of them may
        have failed without its exit being written yet.

        grace: seconds between SIGTERM and SIGKILL of the replicas.
        """
        known = cast("Stored[JobRecord]", held.record)
        if not held.abandoned and holders_of(known.record) != [self.member.id]:
            try:
                async with asyncio.timeout(LEAVING_PATIENCE):
                    await leave_gang(self._core, known, self.member.id)
                self.notify_pass()
            except (StoreError, BadRecord, TimeoutError) as error:
                self.member.problems.warnings.warn("leaves %s without writing its end: %s", held.owner.id, error)
        held.ask_to_stop(grace, ExitKind.PREEMPTED)

    async def _watch_neighbour(self, attempt: _GangAttempt) -> None:
        try:
            if await watch_neighbour(self._core, attempt.job, self.member.record, self.ask):
                self.notify_pass()
        except (StoreError, BadRecord) as error:
            log.warning("%s: cannot watch whether its next member is alive: %s", attempt.job.record.id, error)
        except Exception:  # the replicas go on, and the failure detector still notices a death
            log.exception("%s: cannot watch whether its next member is alive", attempt.job.record.id)

    async def _run_replica(self, attempt: _GangAttempt, bundle: HeldBundle) -> None:
        held, job = attempt.held, attempt.job.record
        ports = held.ports.descriptors if held.ports is not None and bundle.replica == 0 else ()
        try:
            end = await self.replicas.run(bundle, job, ports)
            log.info("%s: replica %d of attempt %d: %s", job.id, bundle.replica, job.attempt, describe_exit(end.exit))
            await self._end(attempt, bundle, end)
            await self.replicas.clean_up(bundle, job)
        except LeftUnwritten:
            held.abandoned = True
        finally:
            await self.replicas.let_go(bundle, job)

    async def _end(self, attempt: _GangAttempt, bundle: HeldBundle, end: AttemptEnd) -> None:
        """Store the exit, and write its consequences once it can have any."""
        held, job = attempt.held, attempt.job.record
        left = self._exit_of(bundle, end)
        if left.exit.kind != ExitKind.SUCCESS:
            if attempt.cause is None:
                attempt.cause = bundle.replica
            for other in held.bundles:
                if other is not bundle:
                    other.ask_to_stop(job.spec.grace, ExitKind.STOPPED)
        if len(attempt.exits) + 1 == len(held.bundles):
            held.phase = HoldingPhase.ENDING
        if attempt.is_over(self.member.id):
            attempt.late[bundle.replica] = left
            return
        stored = attempt.exits[bundle.replica] = await self._store(job, bundle.replica, left)
        bundle.exit_stored = True
        if is_own_failure(stored.exit):
            network = self.member.record.network
            peers = GangPeers(self._core, attempt.job, self.member.id, network, self.ask)
            await until_written(self.member, job.id, peers.settle)
        if bundle.replica == attempt.cause or len(attempt.exits) == len(held.bundles):
            own = list(attempt.exits.values())
            await until_written(self.member, job.id, lambda: end_member(self._core, attempt.job, self.member.id, own))
            self.notify_pass()

    async def _store(self, job: JobRecord, replica: int, left: ReplicaExit) -> ReplicaExit:
        """Store the exit until the outcome is known. An exit that cannot be written is replaced by the reason."""
        try:
            return await until_written(self.member, job.id, lambda: store_exit(self._core, job, replica, left))
        except LeftUnwritten:
            raise
        except Exception as error:
            broken = host_failed("the attempt, while its end was written,", job, error)
            instead = replace(left, exit=broken.exit, result=None, outputs=None)
            return await until_written(self.member, job.id, lambda: store_exit(self._core, job, replica, instead))

    def _exit_of(self, bundle: HeldBundle, end: AttemptEnd) -> ReplicaExit:
        """The exit to store: a replica that had not ended by itself when the gang was stopped counts as stopped."""
        stopped = bundle.stop is not None and bundle.stop[1] == ExitKind.STOPPED
        cut_short = end.exit.kind == ExitKind.SUCCESS and stopped and not end.complete_before_stop
        well = end.exit.kind == ExitKind.SUCCESS and not cut_short
        return ReplicaExit(
            agent=self.member.id,
            host=self.member.record.host,
            exit=replace(end.exit, kind=ExitKind.STOPPED) if cut_short else end.exit,
            ended_at=self._core.now(),
            result=end.result if well else None,
            outputs=end.outputs if well else None,
        )


@dataclass(slots=True)
class _GangAttempt:
    """One attempt of a gang, as one of its members runs it.

    Attributes:
        exits: the stored exits of this agent's replicas.
        late: the exits of those that ended after the attempt was over: they have no consequences.
        cause: the first that did not end well. The replicas stopped because of it may be stored before it.
    """

    held: HeldPlacement
    job: Stored[JobRecord]
    exits: dict[int, ReplicaExit] = field(default_factory=dict)
    late: dict[int, ReplicaExit] = field(default_factory=dict)
    cause: int | None = None

    def is_over(self, agent: str) -> bool:
        """Whether the record, as last read, does not run this attempt any more."""
        now = self.held.record.record
        return not isinstance(now, JobRecord) or not runs_gang(now, self.job.record.attempt, agent)
