"""The coordinator's pass: its lease, the knowledge of its successor, and runs beside it, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import ClusterSettings, Holding, JobRecord, Suspect
from tests.support.scripted_agents import ScriptedAgent, agent_now, job_now, join, launch, pass_now, passes
from tests.support.virtual import Cluster

DEATH = 25.0
PASS_INTERVAL = 8.0


async def test_one_of_several_runs_the_pass_and_another_takes_over_when_it_dies(cluster: Cluster) -> None:
    cluster.settings = ClusterSettings(pass_interval=10.0)
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    assert await first.try_pass()
    for _ in range(20):
        await cluster.clock.sleep(PASS_INTERVAL)
        assert await first.try_pass()
        assert not await second.try_pass()
    died = cluster.clock.boottime()
    while not await second.try_pass():
        await cluster.clock.sleep(PASS_INTERVAL)
    assert 3 * 10.0 - PASS_INTERVAL <= cluster.clock.boottime() - died <= 3 * 10.0 + 2 * PASS_INTERVAL
    assert not await first.try_pass(), "the old holder sees that it lost the lease"


async def test_a_reconciler_without_an_agent_runs_passes_until_it_is_cancelled_and_then_resigns(
    cluster: Cluster,
) -> None:
    core = await cluster.core()
    running = asyncio.create_task(Reconciler(core, "p1").run())
    await asyncio.sleep(1)
    first = await pass_now(core)
    assert first.holder == "p1"
    await asyncio.sleep(5 * core.settings.pass_interval)
    assert (await pass_now(core)).progress > first.progress
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await pass_now(core)).holder == ""


async def test_runs_of_once_do_not_keep_a_dead_holders_lease_young(cluster: Cluster) -> None:
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    beating = asyncio.create_task((await join(cluster, "agent")).beat_for_ever())
    assert await first.try_pass()
    visitor = Reconciler(await cluster.core(), "once-1")
    for _ in range(6):
        await visitor.run_once()  # it records the beat at which it saw the agent
        await second.try_pass()
    beating.cancel()
    assert (await pass_now(second.core)).holder == "p2"


async def test_a_holder_whose_record_cannot_be_read_is_followed_by_another(cluster: Cluster) -> None:
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    assert await first.try_pass()
    await first.core.store.put(AgentKeys.key("p1"), b"{}", ANY)
    await passes(second, 60.0)
    assert (await pass_now(second.core)).holder == "p2"
    assert AgentKeys.key("p1") in (await pass_now(second.core)).problems


async def test_a_holder_that_lost_its_lease_in_the_middle_of_a_pass_does_not_take_it_back(cluster: Cluster) -> None:
    first = Reconciler(await cluster.core(), "p1")
    await first.try_pass()
    await cluster.clock.sleep(PASS_INTERVAL)

    async def frozen_meanwhile() -> None:
        second = Reconciler(await cluster.core(), "p2")
        await passes(second, 60.0)
        assert second.holds_lease

    cluster.connections[0].before["put", "coordinator/"] = frozen_meanwhile
    await first.try_pass()
    assert not first.holds_lease
    assert (await pass_now(first.core)).holder == "p2"


async def test_the_time_as_holder_does_not_count_against_the_next_holder(cluster: Cluster) -> None:
    first = Reconciler(await cluster.core(), "p1")
    await passes(first, 120.0)
    successor = await join(cluster, "p2", supports_placements=True)
    beating = asyncio.create_task(successor.beat_for_ever())

    async def frozen_meanwhile() -> None:
        await passes(Reconciler(successor.core, "p2", lambda: 5), 60.0)

    cluster.connections[0].before["put", "coordinator/"] = frozen_meanwhile
    await first.try_pass()
    assert not await first.try_pass(), "the successor has only just renewed the lease"
    assert (await agent_now(first.core, "p2")).state == "live"
    beating.cancel()


async def test_an_outage_in_the_middle_of_a_pass_ends_it_and_is_nobodys_problem(cluster: Cluster) -> None:
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    await launch(user)

    async def outage() -> None:
        cluster.cut()

    cluster.connections[1].before["get", "jobs/"] = outage
    with pytest.raises(StoreUnavailable):
        await coordinator.try_pass()
    cluster.cut(False)
    await coordinator.try_pass()
    assert (await pass_now(user)).problems == {}


async def test_a_holder_that_resigns_is_followed_at_once(cluster: Cluster) -> None:
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    await first.try_pass()
    assert not await second.try_pass()
    await first.resign()
    assert await second.try_pass()


async def test_suspects_outlive_the_holder_of_the_pass(cluster: Cluster) -> None:
    """Each holder runs for less than the time-out and dies. The silent agent is still declared dead."""

    await join(cluster, "silent")
    cores = [await cluster.core() for _ in range(6)]
    ages = []
    for number, core in enumerate(cores):
        holder = Reconciler(core, f"p{number}")
        await passes(holder, 2 * PASS_INTERVAL)
        await holder.resign()
        ages.append((await pass_now(core)).suspects.get("silent", Suspect(beat=0, age=-1.0)).age)
    assert ages[:2] == [PASS_INTERVAL, 2 * PASS_INTERVAL]
    assert (await agent_now(cores[0], "silent")).state == "dead"


async def test_a_dead_holder_is_itself_a_suspect_whose_age_is_credited(cluster: Cluster) -> None:
    agents = [await join(cluster, name) for name in ("a", "b")]
    first = Reconciler(agents[0].core, "a", own_beat=lambda: 1)
    second = Reconciler(agents[1].core, "b")
    beating = asyncio.create_task(agents[1].beat_for_ever())
    await first.try_pass()
    died = cluster.clock.boottime()
    await passes(second, 2 * DEATH)
    beating.cancel()
    assert (await agent_now(agents[1].core, "a")).state == "dead"
    assert cluster.clock.boottime() - died <= 2 * DEATH + PASS_INTERVAL
    assert (await agent_now(agents[1].core, "b")).state == "live"


async def test_several_runs_of_once_declare_a_death_and_one_does_not(cluster: Cluster) -> None:
    user, dead = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await dead.claim()
    runs = 0
    while (await agent_now(user, "a")).state == "live":
        await Reconciler(await cluster.core(), f"once-{runs}").run_once()
        await cluster.clock.sleep(60.0)
        runs += 1
    assert 2 <= runs <= 5
    assert (await job_now(user, job.id)).attempt == 2


async def test_runs_of_once_beside_the_holder_do_not_count_the_same_silence_twice(cluster: Cluster) -> None:
    """An agent that beats every 20 s is late, but never silent for the 25 s after which it is declared dead."""

    async def _once_after_once(core: Core, number: int) -> None:
        await core.clock.sleep(number * 2.3)
        while True:
            await Reconciler(core, f"once-{number}").run_once()
            await core.clock.sleep(1.0)

    user, slow = await cluster.core(), await join(cluster, "slow")
    tasks = [
        asyncio.create_task(slow.beat_for_ever(every=20.0)),
        asyncio.create_task(passes(Reconciler(await cluster.core(), "p"), 3600.0, every=9.5)),
        *[asyncio.create_task(_once_after_once(await cluster.core(), n)) for n in range(4)],
    ]
    await cluster.clock.sleep(300.0)
    state = (await agent_now(user, "slow")).state
    for task in tasks:
        task.cancel()
    assert state == "live"


async def test_two_passes_at_once_do_no_harm(cluster: Cluster) -> None:
    async def _first_entry_goes(user: Core, agent: ScriptedAgent) -> bool:
        for job_id, holding in agent.holding.items():
            job: Any = await job_now(user, job_id)
            assert holding == Holding(attempt=1, phase="running")
            await user.store.delete(entry_of(job).key())
        return True

    user = await cluster.core()
    jobs = [await launch(user, name=f"job{n}") for n in range(10)]
    dead = await join(cluster, "dead")
    held = [await dead.claim() for _ in jobs[:5] if await _first_entry_goes(user, dead)]
    assert len(held) == 5
    others = [Reconciler(await cluster.core(), f"once-{n}") for n in range(3)]
    for _ in range(5):
        await asyncio.gather(*(other.run_once() for other in others))
    now = [await job_now(user, job.id) for job in jobs]
    assert [(job.status, job.attempt) for job in now] == [("pending", 2)] * 5 + [("pending", 1)] * 5
    assert cluster.keys("pending/") == sorted(entry_of(job).key() for job in now)


async def test_a_job_claimed_after_its_agents_last_beat_is_requeued_when_the_agent_dies(cluster: Cluster) -> None:
    """No beat lists it, so no reaper sees it, and the next repair is far away."""

    cluster.settings = ClusterSettings(repair_interval=1000000.0)
    coordinator = Reconciler(await cluster.core(), "pass")
    dead = await join(cluster, "dead")
    await coordinator.try_pass()
    job = await launch(dead.core)
    await dead.claim(listed=False)
    await passes(coordinator, 60.0, every=7.5)
    assert (await agent_now(dead.core, "dead")).state == "dead"
    now = await job_now(dead.core, job.id)
    assert (now.status, now.attempt) == ("pending", 2)


async def died_unrepaired(cluster: Cluster, coordinator: Reconciler) -> tuple[ScriptedAgent, JobRecord]:
    """An agent that was declared dead, and its job. The repair would find it, but cannot list jobs."""
    dead = await join(cluster, "dead")
    await coordinator.try_pass()
    job = await launch(dead.core)
    await dead.claim(listed=False)
    cluster.connections[0].refused.append(("list", JobKeys.area))
    await passes(coordinator, 60.0, every=7.5)
    assert (await agent_now(dead.core, "dead")).state == "dead"
    return dead, job


async def test_a_repair_that_a_death_made_due_is_made_again_if_it_fails(cluster: Cluster) -> None:
    cluster.settings = ClusterSettings(repair_interval=1000000.0)
    coordinator = Reconciler(await cluster.core(), "pass")
    dead, job = await died_unrepaired(cluster, coordinator)
    assert (await job_now(dead.core, job.id)).attempt == 1
    cluster.connections[0].refused.clear()
    await passes(coordinator, 15.0, every=7.5)
    assert (await job_now(dead.core, job.id)).attempt == 2


async def test_the_next_reconciler_repairs_the_jobs_of_a_dead_agent_before_the_repair_is_due(cluster: Cluster) -> None:
    cluster.settings = ClusterSettings(repair_interval=1000000.0)
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    dead, job = await died_unrepaired(cluster, first)
    await first.resign()
    await second.try_pass()
    assert (await job_now(dead.core, job.id)).attempt == 2


async def test_a_reconciler_that_loses_the_role_ends_its_repair(cluster: Cluster) -> None:
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    cluster.connections[0].before["list", JobKeys.area] = hang
    await first.try_pass()
    await first.resign()
    await second.try_pass()
    assert not ended.is_set()
    assert not await first.try_pass()
    await asyncio.sleep(1.0)
    assert ended.is_set()


async def test_a_reconciler_that_takes_the_role_again_gathers_no_gang_before_it_has_looked(cluster: Cluster) -> None:
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    agents = [await join(cluster, name, supports_placements=True) for name in ("a", "b")]
    await first.try_pass()
    await first.resign()
    await second.try_pass()
    await first.try_pass()
    await second.resign()
    gang = await launch(agents[0].core, replicas=2)
    cluster.connections[0].unanswered.append(("list", AgentKeys.area))
    with pytest.raises(StoreUnavailable):
        await first.try_pass()
    assert first.holds_lease
    await first.schedule_placements()
    assert (await job_now(agents[0].core, gang.id)).placement == gang.placement
    cluster.connections[0].unanswered.clear()
    await first.try_pass()
    await first.schedule_placements()
    assert (await job_now(agents[0].core, gang.id)).placement != gang.placement
