"""Declaring agents dead after observation, and reaping their jobs, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from fray_coordinator.core import Core
from fray_coordinator.errors import StoreRefused, StoreUnavailable
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile import reaper
from fray_coordinator.reconcile.failure_detector import FailureDetector
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, ClusterSettings, Holding, Suspect
from fray_layouts.work_keys import InboxKeys
from tests.support.scripted_agents import ScriptedAgent, agent_now, job_now, join, launch, pass_now, passes
from tests.support.virtual import Cluster

DEATH = 25.0
PASS_INTERVAL = 8.0


async def watched(
    detector: FailureDetector, seconds: float, suspects: dict[str, Suspect] | None = None
) -> dict[str, Suspect]:
    """Look again and again, as the pass does."""
    suspects = suspects or {}
    end = detector.core.clock.boottime() + seconds
    while detector.core.clock.boottime() < end:
        suspects = await detector.observe_agents(suspects)
        await reap_all(detector)
        await detector.core.clock.sleep(PASS_INTERVAL)
    return suspects


async def reap_all(detector: FailureDetector) -> None:
    for dead in detector.unreaped():
        await reaper.reap(detector.core, dead)


async def test_a_silent_agent_is_dead_after_the_stated_time_and_not_before(cluster: Cluster) -> None:
    detector = FailureDetector(await cluster.core())
    await join(cluster, "a")
    suspects: dict[str, Suspect] = {}
    while (await agent_now(detector.core, "a")).state == "live":
        suspects = await detector.observe_agents(suspects)
        await cluster.clock.sleep(PASS_INTERVAL)
    silent = cluster.clock.boottime() - PASS_INTERVAL
    assert DEATH <= silent <= DEATH + 2 * PASS_INTERVAL


@pytest.mark.parametrize(("promised", "believed"), [(1e9, 240.0), (1e-9, 5.0)])
async def test_a_strange_promise_keeps_nobody_from_being_declared_dead(
    cluster: Cluster, promised: float, believed: float
) -> None:
    """A promise of years would never be over, and within one of an instant nobody looks twice."""

    user, agent = await cluster.core(), await join(cluster, "a", interval=promised)
    job = await launch(user)
    await agent.claim()
    coordinator = Reconciler(await cluster.core(), "p")
    await passes(coordinator, 5 * believed - 2 * PASS_INTERVAL)
    assert (await agent_now(user, "a")).state == "live"
    await passes(coordinator, 5 * PASS_INTERVAL)
    assert (await agent_now(user, "a")).state == "dead"
    assert (await job_now(user, job.id)).status == "pending"


async def test_an_agent_that_beats_lives_for_ever(cluster: Cluster) -> None:
    detector, agent = FailureDetector(await cluster.core()), await join(cluster, "a")
    beating = asyncio.create_task(agent.beat_for_ever())
    await watched(detector, 3600.0)
    assert (await agent_now(detector.core, "a")).state == "live"
    beating.cancel()


async def test_an_idle_agent_is_given_the_time_that_it_promised(cluster: Cluster) -> None:
    detector = FailureDetector(await cluster.core())
    await join(cluster, "a", interval=60.0)
    suspects = await watched(detector, 290.0)
    assert (await agent_now(detector.core, "a")).state == "live"
    await watched(detector, 30.0, suspects)
    assert (await agent_now(detector.core, "a")).state == "dead"


async def test_an_outage_kills_nobody(cluster: Cluster) -> None:
    async def _through_outages(agent: ScriptedAgent) -> None:
        while True:
            try:
                await agent.beat()
            except StoreUnavailable:
                continue
            await agent.core.clock.sleep(5.0)

    settings = ClusterSettings(idle_beat_interval=5.0)
    cluster.settings = settings
    core = await cluster.core()
    agents = [await join(cluster, name) for name in ("a", "b")]
    detector = FailureDetector(core)
    suspects = await watched(detector, 60.0, {})
    beating = [asyncio.create_task(_through_outages(agent)) for agent in agents]
    suspects = await watched(detector, 30.0, suspects)
    cluster.cut()
    for _ in range(4):
        with pytest.raises(StoreUnavailable):
            await detector.observe_agents(suspects)
    cluster.cut(False)
    await watched(detector, 300.0, suspects)
    assert {(await agent_now(core, name)).state for name in ("a", "b")} == {"live"}
    for task in beating:
        task.cancel()


async def test_an_observer_that_cannot_write_counts_no_silence(cluster: Cluster) -> None:
    """All writes are refused and reads are answered. When writes work again, agents get their time to beat."""

    coordinator, agent = Reconciler(await cluster.core(), "p"), await join(cluster, "a")
    for _ in range(3):
        await agent.beat()
        await passes(coordinator, 5.0, every=5.0)
    cluster.connections[0].refused = [("put", "")]
    for _ in range(10):
        with pytest.raises(StoreRefused):
            await coordinator.try_pass()
        await cluster.clock.sleep(8.0)
    cluster.connections[0].refused = []
    await passes(coordinator, 10.0, every=5.0)
    assert (await agent_now(agent.core, "a")).state == "live"
    await passes(coordinator, 40.0)
    assert (await agent_now(agent.core, "a")).state == "dead"


async def test_after_a_failed_write_silence_counts_from_the_next_read_only(cluster: Cluster) -> None:
    detector = FailureDetector(await cluster.core())
    await join(cluster, "a")
    await detector.observe_agents({})
    detector.confirm()
    await cluster.clock.sleep(PASS_INTERVAL)
    assert (await detector.observe_agents({}))["a"].age == PASS_INTERVAL
    detector.discount()
    await cluster.clock.sleep(PASS_INTERVAL)
    assert (await detector.observe_agents({}))["a"].age == 0.0
    await cluster.clock.sleep(PASS_INTERVAL)
    assert (await detector.observe_agents({}))["a"].age == PASS_INTERVAL


async def test_a_run_of_once_that_waited_until_it_could_write_takes_that_time_for_nobodys_silence(
    cluster: Cluster,
) -> None:
    user, agent = await cluster.core(), await join(cluster, "a", interval=60.0)
    await passes(Reconciler(user, "p"), 280.0)
    visitor = Reconciler(await cluster.core(), "once")
    await user.store.put(InboxKeys.key("job"), b'{"name": "job", "entrypoint": {"command": ["true"]}}', ANY)
    cluster.connections[-1].read_only = True
    visit = asyncio.create_task(visitor.run_once())
    await cluster.clock.sleep(50.0)
    cluster.connections[-1].read_only = False
    await visit
    assert (await agent_now(user, agent.id)).state == "live"
    assert not cluster.keys(InboxKeys.area)


async def test_a_death_is_not_declared_at_the_end_of_the_outage_of_writes_in_which_it_was_due(cluster: Cluster) -> None:
    """The verdict comes in the same instant as the beat of an agent that was only late."""

    coordinator, agent = Reconciler(await cluster.core(), "p"), await join(cluster, "late")
    full_disk = asyncio.Event()

    async def fill() -> None:
        cluster.connections[0].read_only = True
        full_disk.set()

    cluster.connections[0].before["put", AgentKeys.area] = fill
    passing = asyncio.create_task(passes(coordinator, 100.0))
    await full_disk.wait()
    await cluster.clock.sleep(20.0)
    cluster.connections[0].read_only = False
    await cluster.clock.sleep(7.0)
    assert await agent.beat()
    passing.cancel()


async def test_a_run_of_once_gives_agents_their_time_after_an_outage_of_writes_that_it_did_not_notice(
    cluster: Cluster,
) -> None:
    """The run has nothing to write, and goes on from the silence that another run saw before the outage."""

    user, agent = await cluster.core(), await join(cluster, "late")
    await passes(Reconciler(user, "p"), 20.0)
    visitor = Reconciler(await cluster.core(), "once")
    cluster.connections[-1].read_only = True
    visit = asyncio.create_task(visitor.run_once())
    await cluster.clock.sleep(10.0)
    cluster.connections[-1].read_only = False
    await cluster.clock.sleep(5.0)
    assert await agent.beat()
    await visit
    assert (await agent_now(user, agent.id)).state == "live"


async def test_a_frozen_observer_kills_nobody(cluster: Cluster) -> None:
    """The observer looks, freezes for an hour, and looks again at an agent that beat until the last moment."""

    detector, agent = FailureDetector(await cluster.core()), await join(cluster, "a")
    suspects = await detector.observe_agents({})
    await cluster.clock.sleep(3600.0)
    suspects = await detector.observe_agents(suspects)
    await cluster.clock.sleep(3600.0)
    suspects = await detector.observe_agents(suspects)
    assert suspects["a"].age == 0.0
    assert await agent.beat()


async def test_a_beat_between_the_read_and_the_verdict_saves_the_agent(cluster: Cluster) -> None:
    agent = await join(cluster, "a")
    detector = FailureDetector(await cluster.core())
    suspects = await watched(detector, 4 * PASS_INTERVAL - 1)

    async def in_time() -> None:
        assert await agent.beat()

    cluster.connections[-1].before["put", "agents/"] = in_time
    await detector.observe_agents(suspects)
    assert cluster.connections[-1].before == {}, "the observer meant to declare it dead"
    assert (await agent_now(detector.core, "a")).state == "live"


async def test_many_at_once_get_one_more_time_out_and_then_die(cluster: Cluster) -> None:
    for name in "abc":
        await join(cluster, name)
    detector = FailureDetector(await cluster.core())
    suspects = await watched(detector, 41.0)
    assert all(suspects[name].deferred for name in "abc")
    await watched(detector, 41.0, suspects)
    assert [(await agent_now(detector.core, name)).state for name in "abc"] == ["dead"] * 3


# --- reaping -----------------------------------------------------------------------------------------------------


async def test_a_dead_agents_job_is_requeued_and_its_zombie_can_change_nothing(cluster: Cluster) -> None:
    user, dead = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await dead.claim()
    await user.store.delete(entry_of(job).key())
    await watched(FailureDetector(user), 60.0)
    back = await job_now(user, job.id)
    assert (back.status, back.attempt, back.failures, back.preemptions) == ("pending", 2, 0, 1)
    assert cluster.keys("pending/") == [entry_of(back).key()]
    assert (await agent_now(user, "a")).reaped
    assert not await dead.beat()
    other = await (await join(cluster, "b")).claim()
    zombie = await dead.end(held)
    assert zombie == other.record


async def test_a_commit_that_lands_before_the_reaping_counts(cluster: Cluster) -> None:
    user, dead = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await dead.claim()
    observer = await cluster.core()

    async def in_time() -> None:
        await dead.end(held)

    cluster.connections[-1].before["put", "jobs/"] = in_time
    await watched(FailureDetector(observer), 60.0)
    assert (await job_now(user, job.id)).status == "succeeded"
    assert (await agent_now(user, "a")).reaped
    assert cluster.keys("pending/") == []


@pytest.mark.parametrize("step", [("put", "jobs/"), ("put", "pending/"), ("delete", "pending/"), ("put", "agents/")])
async def test_a_reaping_that_was_cut_short_is_finished_by_the_next(cluster: Cluster, step: tuple[str, str]) -> None:
    user, dead = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await dead.claim()
    await user.store.delete(entry_of(job).key())
    detector = FailureDetector(user)
    await _declare_dead(user, "a")

    async def die() -> None:
        raise asyncio.CancelledError

    mortal = FailureDetector(await cluster.core())
    await mortal.observe_agents({})
    cluster.connections[-1].before[step] = die
    with pytest.raises(asyncio.CancelledError):
        await reap_all(mortal)
    assert not (await agent_now(user, "a")).reaped
    await detector.observe_agents({})
    await reap_all(detector)
    back = await job_now(user, job.id)
    assert (back.status, back.attempt) == ("pending", 2)
    assert cluster.keys("pending/") == [entry_of(back).key()]
    assert (await agent_now(user, "a")).reaped


async def test_a_job_that_cannot_be_read_keeps_no_other_from_being_requeued(cluster: Cluster) -> None:
    user, dead = await cluster.core(), await join(cluster, "a")
    odd, *sound = [(await launch(user)).id for _ in range(20)]
    for _ in range(20):
        held = await dead.claim(listed=False)
        await user.store.delete(entry_of(held.record).key())
    dead.holding = {job: Holding(attempt=1, phase="running") for job in (odd, *sound)}
    await dead.beat()
    lies = await user.store.get(JobKeys.key(odd))
    assert lies is not None
    await user.store.put(JobKeys.key(odd), b"{}", ANY)
    await _declare_dead(user, "a")
    coordinator = Reconciler(user, "p")
    await coordinator.try_pass()
    assert {(await job_now(user, job)).status for job in sound} == {"pending"}
    assert len(cluster.keys("pending/")) == len(sound)
    assert odd in coordinator.problems[AgentKeys.key("a")]
    assert not (await agent_now(user, "a")).reaped
    await user.store.put(JobKeys.key(odd), lies.data, ANY)
    await coordinator.try_pass()
    assert (await job_now(user, odd)).status == "pending"
    assert (await agent_now(user, "a")).reaped


async def _declare_dead(core: Core, name: str) -> None:
    agent = await core.records.read(AgentKeys.key(name), AgentRecord)
    assert agent is not None
    assert await reaper.declare_agent_dead(core, agent) is not None


async def test_a_claim_that_lands_after_its_agents_reaping_is_found_through_its_entry(cluster: Cluster) -> None:
    user, late = await cluster.core(), await join(cluster, "a")
    job = await launch(user)

    async def dies_first() -> None:
        await _declare_dead(user, "a")
        detector = FailureDetector(user)
        await detector.observe_agents({})
        await reap_all(detector)

    cluster.connections[-1].before["put", "jobs/"] = dies_first
    await late.try_claim()
    assert (await job_now(user, job.id)).status == "running"
    await Reconciler(user, "p").try_pass()
    back = await job_now(user, job.id)
    assert (back.status, back.attempt) == ("pending", 2)
    assert cluster.keys("pending/") == [entry_of(back).key()]


async def test_a_job_that_kills_its_hosts_fails_before_it_takes_them_all(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user, name="killer", max_retries_failure=0)
    for name in ("a", "b", "c"):
        victim = await join(cluster, name)
        await victim.claim()
        await watched(FailureDetector(user), 60.0)
    end = await job_now(user, job.id)
    assert end.exit is not None
    assert (end.status, end.attempt, end.failures, end.preemptions) == ("failed", 3, 1, 2)
    assert "kills its hosts" in end.exit.message
    assert cluster.keys("pending/") == []


async def test_an_unreadable_agent_record_is_reported_and_the_other_agents_are_watched(cluster: Cluster) -> None:
    user = await cluster.core()
    await join(cluster, "a")
    await user.store.put("agents/odd.json", b"[]", ANY)
    await passes(Reconciler(user, "p"), 60.0)
    assert (await agent_now(user, "a")).state == "dead"
    assert list((await pass_now(user)).problems) == ["agents/odd.json"]
