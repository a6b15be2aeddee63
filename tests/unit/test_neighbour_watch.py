"""Members of a gang that ask one another whether they live: which answers end the attempt, and which do not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fray_coordinator.jobs import commit
from fray_coordinator.jobs.stopping import stop
from fray_layouts.states import AgentState
from tests.support.gang_stage import stage_of
from tests.support.virtual import Cluster


async def test_an_agent_that_ends_is_noticed_within_two_seconds_though_no_replica_fails(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1], "c": [2]})
    await stage.run("a", "c")
    await asyncio.sleep(30)
    assert (await stage.now()).status == "running"
    stage.gone.add("b")
    await asyncio.sleep(2.5)
    job = await stage.now()
    assert (job.status, job.attempt, job.failures, job.preemptions) == ("gathering", 2, 0, 1)
    assert stage.notified_pass == ["a"]


async def test_an_agent_that_falls_silent_is_noticed_within_ten_seconds_if_it_owes_a_heartbeat(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1], "c": [2]})
    await stage.run("a", "b", "c")
    beating = asyncio.create_task(stage.beats("b"))
    await asyncio.sleep(14)
    stage.answering.remove("b")
    await asyncio.sleep(60)
    assert (await stage.now()).status == "running", "its heartbeat goes on: it only cannot be reached"
    stage.answering.add("b")
    await asyncio.sleep(5)
    stage.answering.remove("b")
    beating.cancel()
    await asyncio.sleep(9)
    job = await stage.now()
    assert (job.status, job.attempt, job.failures, job.preemptions) == ("gathering", 2, 0, 1)
    assert job.history[-1].exit.message == "replica 1 on hb: its agent b does not answer any more"
    assert stage.notified_pass == ["a"]


async def test_a_gang_that_is_to_be_stopped_is_not_ended_while_a_silent_agent_may_run_its_replica(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1], "c": [2]})
    await stage.run("a", "b", "c")
    await asyncio.sleep(14)
    stage.answering.remove("b")
    await stop(stage.core, stage.gang.record.id, "enough")
    await asyncio.sleep(60)
    assert ((await stage.now()).status, stage.notified_pass) == ("running", [])
    await stage.agent_is("b", state=AgentState.DEAD)
    await commit.end_without(stage.core, stage.gang, "b")
    assert (await stage.now()).status == "stopped"


async def test_an_agent_that_ends_is_the_end_of_a_gang_that_is_to_be_stopped(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a", "b")
    await asyncio.sleep(14)
    await stop(stage.core, stage.gang.record.id, "enough")
    stage.gone.add("b")
    await asyncio.sleep(2.5)
    assert ((await stage.now()).status, stage.notified_pass) == ("stopped", ["a"])


async def test_one_question_without_an_answer_ends_no_gang_though_a_heartbeat_is_late(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    await stage.run("a", "b")
    await asyncio.sleep(30)
    stage.answering.remove("b")
    await asyncio.sleep(1.3)
    stage.answering.add("b")
    await asyncio.sleep(30)
    assert (await stage.now()).status == "running"


async def test_a_silent_agent_that_was_declared_dead_owes_no_heartbeat(cluster: Cluster, tmp_path: Path) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1], "c": [2]})
    await stage.run("a", "b", "c")
    await asyncio.sleep(14)
    stage.answering.remove("b")
    await stage.agent_is("b", state=AgentState.DEAD)
    await asyncio.sleep(5)
    assert (await stage.now()).attempt == 2


async def test_an_agent_that_never_answered_is_not_lost_because_connections_to_it_are_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = await stage_of(cluster, tmp_path, {"a": [0], "b": [1]})
    stage.gone.add("b")
    await stage.run("a")
    await asyncio.sleep(30)
    assert (await stage.now()).status == "running"
