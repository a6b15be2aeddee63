"""How gangs are treated by burials, the repair, the cascade, retention and fsck."""

from __future__ import annotations

import asyncio

import pytest

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs import stopping
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, max_interval
from fray_coordinator.protocol.retention import retention_seconds
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import Holding, ParentLink, PendingEntry
from fray_layouts.work_keys import WorkKeys
from tests.support.running_gangs import leave_exit, running_gang
from tests.support.scripted_agents import ScriptedAgent, agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster


async def member(cluster: Cluster, name: str, lists: bool = True) -> ScriptedAgent:
    """A member's agent that lists the gang or does not."""
    hand = await join(cluster, name)
    if lists:
        hand.holding["g-1"] = Holding(attempt=1, phase="running", round=1, bundles=[int(name[1:])])
        await hand.beat()
    return hand


async def passes_by(cluster: Cluster, seconds: float, *beating: ScriptedAgent) -> None:
    """A participant that is no member makes passes for a while, and these agents beat."""
    lives = [asyncio.create_task(hand.beat_for_ever()) for hand in beating]
    await passes(Reconciler(await cluster.core(), "p"), seconds)
    for life in lives:
        life.cancel()


async def entries(core: Core) -> list[str]:
    return [row.key for row in await core.store.list(PlacementKey.area) if row.key != PlacementKey.bell]


async def test_a_member_that_dies_requeues_the_gang_once(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user)
    alive, _ = await member(cluster, "a0"), await member(cluster, "a1")
    await passes_by(cluster, 200.0, alive)
    job = await job_now(user, "g-1")
    assert (job.status, job.attempt, job.preemptions, job.agent_deaths) == ("gathering", 2, 1, 1)
    assert len(await entries(user)) == 1
    assert (await agent_now(user, "a1")).reaped
    assert cluster.keys("pending/") == [], "nobody may take it for a single job"


async def test_a_gang_whose_members_die_together_is_requeued_once(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user, 3)
    for name in ("a0", "a1", "a2"):
        await member(cluster, name)
    await passes_by(cluster, 300.0)
    job = await job_now(user, "g-1")
    assert (job.status, job.attempt, job.preemptions) == ("gathering", 2, 1)


async def test_a_member_that_dies_after_its_part_ends_the_gang_if_all_others_have(cluster: Cluster) -> None:
    user = await cluster.core()
    gang = await running_gang(user)
    alive, _ = await member(cluster, "a0", lists=False), await member(cluster, "a1")
    await leave_exit(user, gang.record, 0)
    await leave_exit(user, gang.record, 1)
    await passes_by(cluster, 200.0, alive)
    assert (await job_now(user, "g-1")).status == "succeeded"
    assert await entries(user) == []


async def test_a_member_that_dies_after_its_part_leaves_the_gang_to_the_others(cluster: Cluster) -> None:
    user = await cluster.core()
    gang = await running_gang(user)
    alive, _ = await member(cluster, "a0"), await member(cluster, "a1")
    await leave_exit(user, gang.record, 1)
    await passes_by(cluster, 300.0, alive)
    job = await job_now(user, "g-1")
    assert (job.status, job.attempt) == ("running", 1)


async def test_a_member_of_which_there_is_no_record_is_found_by_the_repair(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user)
    alive = await member(cluster, "a0")
    await passes_by(cluster, 200.0, alive)
    assert (await job_now(user, "g-1")).attempt == 2


async def test_a_member_that_lives_and_has_dropped_its_replica_is_found_by_the_repair(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user)
    one, dropped = await member(cluster, "a0"), await member(cluster, "a1", lists=False)
    await passes_by(cluster, 400.0, one, dropped)
    job = await job_now(user, "g-1")
    assert (job.status, job.attempt) == ("gathering", 2)
    assert job.history[-1].exit.message == "replica 1 on h1: its agent a1 lives, but has dropped it"


async def test_a_member_that_lists_its_part_no_longer_since_it_has_ended_is_left_alone(cluster: Cluster) -> None:
    user = await cluster.core()
    gang = await running_gang(user)
    one, done = await member(cluster, "a0"), await member(cluster, "a1", lists=False)
    await leave_exit(user, gang.record, 1)
    await passes_by(cluster, 400.0, one, done)
    assert (await job_now(user, "g-1")).status == "running"


async def test_a_gang_of_which_all_replicas_have_ended_and_that_no_member_lists_is_ended_by_the_repair(
    cluster: Cluster,
) -> None:
    """Its record was restored from a backup, for example."""
    user = await cluster.core()
    gang = await running_gang(user)
    members = [await member(cluster, name, lists=False) for name in ("a0", "a1")]
    for replica in range(2):
        await leave_exit(user, gang.record, replica)
    await passes_by(cluster, 400.0, *members)
    assert (await job_now(user, "g-1")).status == "succeeded"


async def test_a_member_whose_record_is_garbage_is_written_off_in_time(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user)
    alive, _ = await member(cluster, "a0"), await member(cluster, "a1")
    await user.store.put(AgentKeys.key("a1"), b"garbage", ANY)
    await passes_by(cluster, 2 * DEATH_INTERVALS * max_interval(user.settings), alive)
    assert (await job_now(user, "g-1")).attempt == 2


async def test_a_gang_that_gathers_for_too_long_is_stopped(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user, fields={"status": "gathering"}, pending_timeout=30)
    await passes_by(cluster, 200.0)
    job = await job_now(user, "g-1")
    assert job.stop is not None
    assert (job.status, job.stop.by) == ("stopped", "expired")
    assert await entries(user) == []


@pytest.mark.parametrize(("status", "after"), [("gathering", "stopped"), ("running", "running")])
async def test_a_gang_ends_with_its_parent(cluster: Cluster, status: str, after: str) -> None:
    user = await cluster.core()
    parent = await launch(user)
    link = ParentLink(job=parent.id, attempt=1)
    await running_gang(user, fields={"status": status, "parent": link})
    beating = [await member(cluster, name) for name in ("a0", "a1")]
    await stopping.stop(user, parent.id, "enough")
    await passes_by(cluster, 200.0, *beating)
    job = await job_now(user, "g-1")
    assert job.stop is not None, "its members see the flag"
    assert (job.status, job.stop.by) == (after, "parent")


async def test_a_pending_entry_of_a_gang_goes(cluster: Cluster) -> None:
    user = await cluster.core()
    gang = await running_gang(user, fields={"status": "gathering"})
    other = await launch(user)
    key = next(iter(cluster.keys("pending/"))).replace(other.id, gang.record.id)
    await user.records.put(key, PendingEntry(job=gang.record.id, attempt=1), ABSENT)
    await passes_by(cluster, 200.0)
    assert key not in cluster.keys("pending/")
    assert (await job_now(user, "g-1")).status == "gathering"


async def test_retention_takes_the_exits_with_the_job(cluster: Cluster) -> None:
    user = await cluster.core()
    gang = await running_gang(user, fields={"status": "gathering"})
    for replica in range(2):
        await leave_exit(user, gang.record, replica)
        await user.store.put(WorkKeys.log("g-1", 1, replica, 1), b"x", ABSENT)
    await stopping.stop(user, "g-1", "enough")
    for _ in range(2):  # the gang is archived, and then removed
        await asyncio.sleep(retention_seconds(user.settings) + 1)
        await passes_by(cluster, 200.0)
    assert cluster.keys("jobs/") == cluster.keys("archive/") == cluster.keys("work/") == []


async def test_fsck_finds_nothing_wrong_with_a_gang_that_runs(cluster: Cluster) -> None:
    user = await cluster.core()
    gang = await running_gang(user, 3)
    beating = [await member(cluster, "a0"), await member(cluster, "a1"), await member(cluster, "a2", lists=False)]
    await leave_exit(user, gang.record, 2)
    await passes_by(cluster, 300.0, *beating)
    assert [problem for problem in await fsck.check(user) if "placements" not in problem.key] == []


async def test_fsck_tells_of_members_that_are_gone_or_stop_nothing(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user, 3)
    beating = [await member(cluster, "a0"), await member(cluster, "a1", lists=False)]
    await stopping.stop(user, "g-1", "enough")
    lives = [asyncio.create_task(hand.beat_for_ever()) for hand in beating]
    await asyncio.sleep(5000)
    told = [problem.what for problem in await fsck.check(user) if problem.key == JobKeys.key("g-1")]
    assert sorted(told) == [
        "by its record agent a1 runs its replicas [1], and lives, but does not list it",
        "it was asked to stop, but agent a0, which lives, has not ended its replicas",
        "its replicas [2] run under agent a2, which is unknown",
    ]
    for life in lives:
        life.cancel()


async def test_fsck_tells_of_an_exit_that_cannot_be_read(cluster: Cluster) -> None:
    user = await cluster.core()
    gang = await running_gang(user)
    await leave_exit(user, gang.record, 0)
    await user.store.put(WorkKeys.exit("g-1", 1, 1), b"garbage", ABSENT)
    told = {problem.key: problem.what for problem in await fsck.check(user)}
    assert WorkKeys.exit("g-1", 1, 0) not in told
    assert "nobody knows how this replica of a gang ended" in told[WorkKeys.exit("g-1", 1, 1)]


async def test_fsck_tells_of_a_gang_that_names_no_members(cluster: Cluster) -> None:
    user = await cluster.core()
    await running_gang(user, fields={"placement": None})
    told = [problem.what for problem in await fsck.check(user) if problem.key == JobKeys.key("g-1")]
    assert told == ["by its record it runs, but the record names no agent: none can finish it"]
