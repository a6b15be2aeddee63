"""A member's replicas of a gang, from their start to the record of their end; in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest

from fray_coordinator.jobs.commit import ended_replicas, exit_times, leave_gang
from fray_coordinator.jobs.gang_peers import PeerAnswer
from fray_coordinator.jobs.stopping import stop
from fray_layouts.records import (
    JobResult,
    ReplicaExit,
)
from fray_layouts.states import AgentState
from fray_layouts.work_keys import WorkKeys
from tests.support.gang_stage import GangStage, stage_of
from tests.support.virtual import Cluster


async def test_a_gang_succeeds_with_the_result_of_replica_0_and_a_log_of_each(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1, 2]})
    await stage.run("a", "b")
    for replica in (0, 2, 1):
        stage.tasks[replica].ends(result=f"of {replica}".encode())
    job = await stage.over("a", "b")
    assert (job.status, job.attempt) == ("succeeded", 1)
    assert job.result == JobResult(encoding="bytes", data="b2YgMA==", size=4)
    for replica in range(3):
        log = await stage.core.store.get(WorkKeys.log("g-1", 1, replica, 1))
        assert log is not None
        assert log.data == f"log of {replica}".encode()
        left = await stage.core.records.read(WorkKeys.exit("g-1", 1, replica), ReplicaExit)
        assert left is not None
        assert (left.record.exit.kind, left.record.exit.log_chunks) == ("success", 1)
        assert left.record.result is not None


async def test_a_replica_finds_its_number_and_a_directory_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0, 1]})
    await stage.run("a")
    specs = [stage.tasks[replica].spec for replica in (0, 1)]
    assert [spec.env["FRAY_REPLICA"] for spec in specs] == ["0", "1"]
    assert specs[0].directory != specs[1].directory


async def test_a_failure_ends_the_replicas_beside_it_and_is_counted_once(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1, 2]}, max_retries_failure=1)
    await stage.run("a", "b")
    stage.tasks[2].ends("exited")
    job = await stage.over("b")
    assert (job.status, job.attempt, job.failures, job.preemptions) == ("gathering", 2, 1, 0)
    assert job.history[-1].exit.message == "replica 2 on hb: it exited"
    assert stage.tasks[1].told[0] == (3.0, "stopped")
    assert stage.notified_pass, "whoever runs the pass tells the others"
    assert not stage.tasks[0].exit.done(), "its own agent ends it, once it has read that the attempt is over"


async def test_the_others_find_that_the_attempt_is_over_and_write_nothing_more(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]}, max_retries_failure=9)
    await stage.run("a", "b")
    stage.tasks[0].ends("exited")
    stage.tasks[1].ends("exited")
    job = await stage.over("a", "b")
    assert (job.status, job.attempt, job.failures) == ("gathering", 2, 1)


async def test_a_replica_that_fails_because_a_host_died_is_no_failure_of_the_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a")
    stage.answering.remove("b")
    begun = stage.core.clock.boottime()
    stage.tasks[0].ends("exited")
    await asyncio.sleep(10)
    assert (await stage.now()).status == "running", "nobody can tell yet"
    await stage.agent_is("b", state=AgentState.DEAD)
    job = await stage.over("a")
    assert (job.status, job.failures, job.preemptions, job.agent_deaths) == ("gathering", 0, 1, 1)
    assert job.history[-1].agent == "b"
    assert stage.core.clock.boottime() - begun < 13


async def test_a_failure_is_counted_at_once_where_the_others_answer(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1], "c": [2], "d": [3]}, max_retries_failure=1)
    await stage.run("a")
    begun = stage.core.clock.boottime()
    stage.tasks[0].ends("exited")
    job = await stage.over("a")
    assert (job.status, job.failures, job.preemptions) == ("gathering", 1, 0)
    assert stage.core.clock.boottime() - begun < 0.2


async def test_a_failure_is_counted_though_a_member_that_only_beats_has_a_replica_that_ended_well(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1, 2]})
    await stage.run("a", "b")
    stage.answering.remove("b")
    stage.tasks[2].ends()
    beating = asyncio.create_task(stage.beats("b"))
    stage.tasks[0].ends("exited")
    async with asyncio.timeout(10):
        job = await stage.over("a")
    assert (job.status, job.failures) == ("failed", 1)
    beating.cancel()


async def test_a_member_vouches_while_its_replicas_run_and_their_ends_are_known(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0, 1], "b": [2]})
    await stage.run("a", "b")
    member = stage.runners["a"].member
    member.leases.add_placement(stage.held["a"])
    assert member.vouches()
    stored = asyncio.Event()
    cluster.connections[-1].before["put", WorkKeys.exit("g-1", 1, 0)] = stored.wait
    stage.tasks[0].ends()
    await asyncio.sleep(1)
    assert not member.vouches(), "nobody else can know how it ended"
    stored.set()
    await asyncio.sleep(1)
    assert member.vouches()
    member.trusted_until = 0.0
    assert not member.vouches(), "it was frozen: its replica's deadline may have passed"
    member.trusted_until, member.leaving = float("inf"), True
    assert not member.vouches()


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_failure_is_counted_though_exits_of_replicas_that_it_stopped_are_stored_first(
    cluster: Cluster, tmp_path: Path, leaves: bool
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0, 1]}, max_retries_failure=1)

    async def slow() -> None:
        await asyncio.sleep(5)

    for connection in cluster.connections:
        connection.before["put", WorkKeys.exit("g-1", 1, 0)] = slow
    await stage.run("a")
    stage.tasks[0].ends("exited")
    await asyncio.sleep(1)
    assert await stage.core.store.get(WorkKeys.exit("g-1", 1, 1)) is not None
    if leaves:
        await stage.runners["a"].leave(stage.held["a"], 3.0)
    job = await stage.over("a")
    assert (job.status, job.failures, job.preemptions) == ("gathering", 1, 0)


async def test_a_member_that_is_silent_for_too_long_is_lost_though_nobody_has_declared_it_dead(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a")
    stage.answering.remove("b")
    stage.tasks[0].ends("exited")
    job = await stage.over("a")
    assert (job.status, job.failures, job.agent_deaths) == ("gathering", 0, 1)


async def test_a_member_whose_process_has_ended_is_lost_at_once(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a")
    stage.gone.add("b")
    begun = stage.core.clock.boottime()
    stage.tasks[0].ends("exited")
    job = await stage.over("a")
    assert (job.status, job.failures, job.agent_deaths) == ("gathering", 0, 1)
    assert stage.core.clock.boottime() - begun < 1


async def test_a_question_that_fails_in_an_odd_way_is_told_and_ends_nothing(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})

    async def fails(endpoint: object) -> PeerAnswer:
        raise RuntimeError("an odd answer")

    with mock.patch.object(GangStage, "_ask", lambda stage, endpoint: fails(endpoint)):
        await stage.run("a", "b")
        await asyncio.sleep(30)
        stage.tasks[0].ends()
        stage.tasks[1].ends()
        assert (await stage.over("a", "b")).status == "succeeded"
    assert "cannot watch whether its next member is alive" in caplog.text
    assert "an odd answer" in caplog.text


async def test_nobody_is_asked_through_another_network(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.agent_is("b", network="far away")
    await stage.run("a")
    stage.gone.add("b")
    await stage.run("b")
    beating = asyncio.create_task(stage.beats("b"))
    stage.tasks[0].ends("exited")
    assert (await stage.over("a")).failures == 1
    beating.cancel()


async def test_an_agent_that_wakes_after_its_replica_s_deadline_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """The agent lives, and its replica had ended before the other one failed, which failed because of that."""
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a", "b")
    stage.answering.remove("b")
    stuck = asyncio.Event()
    cluster.connections[-1].before["put", WorkKeys.log("g-1", 1, 1, 1)] = stuck.wait
    stage.tasks[1].ends("preempted")
    stage.tasks[0].ends("exited")
    beating = asyncio.create_task(stage.beats("b"))
    await asyncio.sleep(20)
    assert (await stage.now()).status == "running"
    stuck.set()
    job = await stage.over("a", "b")
    assert (job.status, job.failures, job.preemptions) == ("gathering", 0, 1)
    beating.cancel()


@pytest.mark.parametrize("how", ["it answers", "it beats"])
async def test_a_failure_while_the_others_live_is_counted_within_seconds(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a", "b")
    beating = asyncio.create_task(stage.beats("b")) if how == "it beats" else None
    if beating is not None:
        stage.answering.remove("b")
    begun = stage.core.clock.boottime()
    stage.tasks[0].ends("exited")
    job = await stage.over("a")
    assert (job.status, job.failures) == ("failed", 1)
    assert stage.core.clock.boottime() - begun < (2 if beating is None else 8)
    if beating is not None:
        beating.cancel()


async def test_an_agent_that_leaves_ends_the_attempt_before_its_replicas(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a", "b")
    seen: list[str] = []

    async def watch() -> None:
        await asyncio.shield(stage.tasks[1].exit)
        seen.append((await stage.now()).status)

    watching = asyncio.create_task(watch())
    await stage.runners["b"].leave(stage.held["b"], 2.0)
    await watching
    assert seen == ["gathering"]
    assert stage.tasks[1].told == [(2.0, "preempted")]
    stage.tasks[0].ends("exited")  # its connections broke
    job = await stage.over("a", "b")
    assert (job.status, job.attempt, job.failures, job.preemptions) == ("gathering", 2, 0, 1)


async def test_an_agent_that_leaves_ends_its_replicas_though_the_store_is_away(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("b")
    cluster.connections[-1].cut = True
    begun = stage.core.clock.boottime()
    await stage.runners["b"].leave(stage.held["b"], 2.0)
    assert stage.tasks[1].told == [(2.0, "preempted")]
    assert stage.core.clock.boottime() - begun <= 3
    cluster.connections[-1].cut = False
    job = await stage.over("b")
    assert (job.status, job.preemptions) == ("gathering", 1)


async def test_a_stopped_gang_has_ended_once_all_its_replicas_have(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a", "b")
    await stop(stage.core, "g-1", "enough")
    stage.held["a"].ask_to_stop(3.0, "stopped")
    assert (await stage.over("a")).status == "running"
    stage.held["b"].ask_to_stop(3.0, "stopped")
    job = await stage.over("b")
    assert job.exit is not None
    assert (job.status, job.exit.message) == ("stopped", "enough")


async def test_an_attempt_that_was_taken_over_leaves_its_exit_and_writes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a")
    moved = await leave_gang(stage.core, stage.gang, "b")
    assert moved is not None
    stage.held["a"].record = moved
    stage.held["a"].ask_to_stop(3.0, "lost")
    before = await stage.now()
    assert await stage.over("a") == before
    left = await stage.core.records.read(WorkKeys.exit("g-1", 1, 0), ReplicaExit)
    assert left is not None
    assert left.record.exit.kind == "lost"


async def test_an_exit_that_cannot_be_written_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0, 1]})
    await stage.run("a")
    cluster.connections[-1].cut = True
    stage.tasks[0].ends()
    stage.tasks[1].ends()
    await asyncio.sleep(600)
    assert not stage.lives["a"].done()
    cluster.connections[-1].cut = False
    assert (await stage.over("a")).status == "succeeded"


async def test_exits_from_which_nothing_follows_keep_no_member_and_come_one_after_the_other(
    cluster: Cluster, tmp_path: Path
) -> None:
    members = {f"m{number}": [number] for number in range(50)}
    stage = await stage_of(cluster, tmp_path, members)
    await stage.run(*members)
    moved = await leave_gang(stage.core, stage.gang, "m0")
    assert moved is not None
    for held in stage.held.values():
        held.record = moved
        held.ask_to_stop(0.0, "lost")
    await asyncio.sleep(0)
    for agent in members:
        assert len(await stage.late[agent]) == 1, "its room is free"
    assert await ended_replicas(stage.core, stage.gang.record) == set()
    await stage.over(*members)
    times = await exit_times(stage.core, stage.gang.record)
    assert len(times) == 50
    assert 0.3 < max(times.values()) - min(times.values()) <= 0.5, "at most a hundred a second"


async def test_an_agent_that_leaves_has_left_its_exits(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a", "b")
    stage.runners["b"].member.leaving = True
    await stage.runners["b"].leave(stage.held["b"], 2.0)
    stage.held["b"].record = (await stage.core.records.reread(stage.gang)) or stage.gang
    assert await stage.late["b"] == {}
    assert await ended_replicas(stage.core, stage.gang.record) == {1}
