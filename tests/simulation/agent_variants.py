"""The real code with one rule about agents (heartbeats, deaths, requests) switched off: all must be caught."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import types
from collections.abc import Generator
from typing import Any

from msgspec.structs import replace

from fray_agents.agent import claimer
from fray_agents.agent.agent import Agent
from fray_agents.agent.attempt_runner import JobWatch
from fray_agents.agent.membership import Heartbeat, Membership
from fray_agents.agent.pool_notices import PoolBell
from fray_coordinator.jobs import notifications
from fray_coordinator.persist import persist
from fray_coordinator.protocol import claiming as index_rules, failure_detection, heartbeat, retention, role_lease
from fray_coordinator.reconcile import failure_detector, reaper
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.store.interface import ANY
from fray_layouts import codec, object_keys
from fray_layouts.records import AgentRecord
from tests.simulation.broken_code import Swap, Variants, everywhere, late_writes
from tests.simulation.scenario import Scenario

VARIANTS = Variants()
variant = VARIANTS.variant
where = VARIANTS.where


def short_lives() -> list[Swap]:
    """A setting: agents come and go, and their writes land late or twice."""
    real = Scenario.drawn

    def drawn(draw: random.Random) -> Scenario:
        return dataclasses.replace(real(draw), hosts=6, preempt_every=30.0, storm_of_sigterms_every=60.0)

    return [(Scenario, "drawn", staticmethod(drawn)), *late_writes()]


# --- heartbeat, trust, mail


@variant
def claims_before_its_own_record_exists() -> list[Swap]:
    """An agent looks for work while its record is on its way."""
    register, run = Heartbeat.register, Heartbeat.run

    async def trust(self: Heartbeat) -> None:
        member = self.member
        member.trusted_until = heartbeat.trusted_until(member.core.clock.boottime(), member.record.interval)

    async def register_and_run(self: Heartbeat) -> None:
        await persist(self.member.core, lambda: register(self))
        await run(self)

    return [(Heartbeat, "register", trust), (Heartbeat, "run", register_and_run)]


@variant
def trust_dated_from_after_the_send() -> list[Swap]:
    """Trust begins when the beat's answer arrives."""
    real = Heartbeat._on_applied
    return [
        (Heartbeat, "_on_applied", lambda self, sent, interval: real(self, self.member.core.clock.boottime(), interval))
    ]


@variant
def a_long_promise_is_trusted_until_a_shorter_one_is_known_to_be_applied() -> list[Swap]:
    """A beat that promises a shorter interval changes nothing for its sender before the reply."""
    real = Heartbeat._beat

    @types.coroutine
    def beat(self: Heartbeat) -> Generator[Any, Any, None]:
        before, steps = self.member.trusted_until, real(self)
        first = steps.send(None)
        self.member.trusted_until = before
        yield first
        yield from steps

    return [(Heartbeat, "_beat", beat)]


@variant
def idle_agents_claim_before_they_beat() -> list[Swap]:
    """An idle agent sends its claim while its record promises a beat a minute."""

    async def claims_at_once(self: Membership) -> None:
        return

    return [(Membership, "promise_for_leases", claims_at_once)]


@variant
def deadlines_never_pass() -> list[Swap]:
    """The tasks of a frozen agent keep running."""
    return [(Membership, "task_deadline", lambda self, job: 1e9)]


@variant
def mail_that_overwrites() -> list[Swap]:
    """Mail overwrites the record that was read, without a condition."""

    async def post_mail(core: Any, agent_id: str) -> None:
        found = await core.records.read(object_keys.AgentKeys.key(agent_id), AgentRecord)
        if found is not None and found.record.state == "live":
            body = codec.successor(replace(found.record, mail=True), core.rng.unique_id(), found.record)
            await core.store.put(found.key, codec.encode(body, found.raw), ANY, body.op)

    return [(notifications, "post_mail", post_mail)]


@variant
def mail_that_keeps_a_dead_agent_alive() -> list[Swap]:
    """Mail says that its receiver lives."""

    def post(record: Any) -> Any:
        return None if record.mail else replace(record, mail=True, state="live")

    return everywhere(heartbeat.with_mail, post)


@variant
def mail_that_counts_as_a_beat() -> list[Swap]:
    """Mail raises the beat, so that a silent agent with mail never ages."""
    real = heartbeat.with_mail

    def post(record: Any) -> Any:
        posted = real(record)
        return None if posted is None else replace(posted, beat=posted.beat + 1)

    return everywhere(real, post)


@variant
def jobs_are_read_for_mail_only() -> list[Swap]:
    """An agent whose mail was lost never looks at its jobs' records."""

    async def never(self: JobWatch) -> None:
        await asyncio.get_running_loop().create_future()

    return [(JobWatch, "run", never)]


@variant
def mail_is_cleared_after_the_jobs_are_read() -> list[Swap]:
    """Mail that arrives in between counts as read."""
    real = Heartbeat._beat

    async def beat(self: Heartbeat) -> None:
        agent = self.on_mail.__self__  # type: ignore[attr-defined]
        if not isinstance(agent, Agent):  # a driver's
            return await real(self)
        if self.member.stored is not None and self.member.stored.record.mail:
            await agent._job_watch.check()
            await self.member.core.clock.sleep(1.0)  # otherwise the window is too narrow
        self.on_mail = lambda: None
        try:
            await real(self)
        finally:
            self.on_mail = agent.check_jobs

    return [(Heartbeat, "_beat", beat)]


@variant
def the_grace_never_ends() -> list[Swap]:
    """Tasks keep running as long as their agent is cut off."""
    real = Membership.task_deadline

    def deadline(self: Membership, job: Any) -> float:
        now, settings = self.core.clock.boottime(), self.core.settings
        cut_off = now >= self.trusted_until and not self.fenced.is_set() and not job.spec.actor
        return now + 2 * settings.beat_interval if cut_off else real(self, job)

    return [(Membership, "task_deadline", deadline)]


# --- death and reaping


@variant
def expiry_by_wall_clock() -> list[Swap]:
    """An agent is dead when its record is older than the time-out by the observer's clock."""

    async def judge(self: Any, seen: Any) -> Any:
        wall = self.core.clock.wall()
        for agent in self.live().values():
            if wall - agent.updated > 5 * agent.record.interval and (
                killed := await reaper.declare_agent_dead(self.core, agent)
            ):
                self._keep(killed, None)
        return {}

    return [(failure_detector.FailureDetector, "_judge", judge)]


@variant
def age_counted_over_gaps() -> list[Swap]:
    """Time in which the observer could not read counts as silence."""
    return [(module, "MAX_GAP_INTERVALS", 1e9) for module in (failure_detection, failure_detector)]


@variant
def death_declared_without_the_cas() -> list[Swap]:
    """An observer that was delayed declares an agent dead without a condition on its beat."""
    declare, kill = failure_detection.declare_dead, reaper.declare_agent_dead

    async def slow(core: Any, *given: Any) -> Any:
        await core.clock.sleep(10.0)
        return await kill(core, *given)

    return [*everywhere(declare, lambda agent, beat: declare(agent, agent.beat)), *everywhere(kill, slow)]


@variant
def requeue_before_death() -> list[Swap]:
    """A job is requeued if its holder does not list it, even if the holder is not dead."""

    def action(job: Any, holder: Any) -> Any:
        listed = holder is not None and job.id in holder.holdings and holder.state == "live"
        return index_rules.IndexAction.DELETE if listed else index_rules.IndexAction.REQUEUE

    return [(index_rules, "_action_while_running", action)]


@variant
def reaping_done_once() -> list[Swap]:
    """The dead record is marked as reaped first; if the reaper dies in between, the other jobs stay."""

    async def reap(core: Any, agent: Any) -> None:
        if failure_detection.needs_reaping(agent.record):
            await core.records.update(agent.key, AgentRecord, lambda now: replace(now, reaped=True) if now else None)
            for job in agent.record.holdings:
                await reaper._requeue_job(core, job, agent.record.id)

    return [(reaper, "reap", reap)]


@where(short_lives())
def records_of_agents_go_at_once() -> list[Swap]:
    """The record of an ended agent is removed at once, although a late write may create it again."""
    return everywhere(retention.removable_agents, lambda ended, now, settings: list(ended))


# --- requests


@variant
def polling_without_back_off() -> list[Swap]:
    """An idle agent looks for work as often as one that has just found some."""
    return [(claimer, "REMOTE_POLL_BACKOFF", (1.0, 1.0, 1.0))]


@variant
def a_cluster_is_never_quiet() -> list[Swap]:
    """The pass is run as often as ever while nothing is left to do."""
    return [(role_lease, "next_pass_in", lambda agents, nothing_to_do, settings: settings.pass_interval)]


@variant
def idle_agents_beat_like_busy_ones() -> list[Swap]:
    """The interval does not depend on the jobs that the agent holds."""
    real = heartbeat.beat_interval
    return everywhere(real, lambda busy, *more: real(True, *more))


@variant
def the_index_is_listed_at_each_poll() -> list[Swap]:
    """The doorbell is not read."""

    async def poll(self: PoolBell) -> None:
        self.rang_for_jobs = True

    return [(PoolBell, "poll", poll)]


# --- the quiet


@VARIANTS.rule(0, "tests/unit/test_request_costs.py::test_the_holder_promises_frequent_passes_before_its_claim_is_sent")
def a_claim_does_not_end_the_quiet() -> list[Swap]:
    """An agent that takes up work does not make the passes frequent again."""

    async def end_quiet(self: Reconciler) -> None:
        return

    return [(Reconciler, "end_quiet", end_quiet)]


@variant
def the_index_is_not_looked_at_in_a_quiet_cluster() -> list[Swap]:
    """A job whose ring was lost waits for the next repair, which is rare."""

    async def look_at_index(self: Repair) -> None:
        return

    return [(Repair, "look_at_index", look_at_index)]
