"""Agents whose records were overwritten: their jobs are still served, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord
from tests.support.scripted_agents import ScriptedAgent, agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster

SILENT = 1200.0
"""Five of the longest intervals that any agent promises by the default settings."""


async def held_by(agent: ScriptedAgent, user: Core) -> JobRecord:
    """A running job of the agent that has no entry in the index."""
    job = await launch(user)
    await agent.claim()
    await user.store.delete(entry_of(job).key())
    return job


async def overwrite(core: Core, agent: str, data: bytes) -> None:
    await core.store.put(AgentKeys.key(agent), data, ANY)


@pytest.mark.parametrize("odd", ["garbage", "another's record"])
async def test_a_dead_agents_job_is_requeued_though_its_record_was_overwritten(cluster: Cluster, odd: str) -> None:
    """The agent could not beat over it either. Once its trust must have run out, it is as dead as any other."""

    user, gone, other = await cluster.core(), await join(cluster, "gone"), await join(cluster, "other")
    job = await held_by(gone, user)
    lies = await user.store.get(AgentKeys.key(other.id))
    assert lies is not None
    await overwrite(user, "gone", b"garbage" if odd == "garbage" else lies.data)
    coordinator = Reconciler(user, "p")
    await passes(coordinator, SILENT - 10.0)
    assert (await job_now(user, job.id)).attempt == 1
    assert AgentKeys.key("gone") in coordinator.problems
    await passes(coordinator, 300.0)
    back = await job_now(user, job.id)
    assert (back.status, back.attempt, back.preemptions) == ("pending", 2, 1)
    assert cluster.keys("pending/") == [entry_of(back).key()]
    assert (await agent_now(user, "gone")).state == "dead"
    assert coordinator.problems == {}
    assert not await gone.beat(), "it has ended, should it come back"


async def test_an_agent_whose_record_changes_lives_though_this_version_cannot_read_it(cluster: Cluster) -> None:
    """A newer version may write records that this one cannot read."""

    user, newer = await cluster.core(), await join(cluster, "newer")
    job = await held_by(newer, user)
    coordinator = Reconciler(user, "p")
    for beat in range(30):
        await overwrite(user, "newer", b'{"beat": "%d"}' % beat)
        await passes(coordinator, SILENT / 10)
    assert (await job_now(user, job.id)).attempt == 1
    with pytest.raises(BadRecord):
        await user.records.read(AgentKeys.key("newer"), AgentRecord)


async def test_a_dead_agents_job_is_requeued_though_its_parents_record_was_overwritten(cluster: Cluster) -> None:
    """The child then waits for its parent, as all of that parent's children do."""

    user, gone, other = await cluster.core(), await join(cluster, "gone"), await join(cluster, "other")
    parent = await launch(user)
    await other.claim()
    await user.store.delete(entry_of(parent).key())
    child = await launch(user, attempt_of_parent=1, parent=parent.id)
    await gone.claim()
    await user.store.delete(entry_of(child).key())
    await user.store.put(JobKeys.key(parent.id), b"garbage", ANY)
    await user.store.delete(AgentKeys.key("gone"))
    await passes(Reconciler(user, "p"), 200.0)
    back = await job_now(user, child.id)
    assert (back.status, back.attempt) == ("pending", 2)


async def test_a_malformed_record_of_an_agent_that_no_job_names_is_left_unchanged(cluster: Cluster) -> None:
    """An odd object among the agents, whose name no job contains."""

    user = await cluster.core()
    await overwrite(user, "odd", b"garbage")
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 2 * SILENT)
    lies = await user.store.get(AgentKeys.key("odd"))
    assert lies is not None
    assert lies.data == b"garbage"


async def put_into_an_unknown_state(core: Core, agent: str) -> None:
    await core.records.change(AgentKeys.key(agent), AgentRecord, lambda now: replace(now, state="asleep"))


async def test_a_silent_agent_in_an_unknown_state_is_dead_once_no_agent_could_trust_itself(cluster: Cluster) -> None:
    """Its record proves neither that it ended nor that it lives."""
    user, gone = await cluster.core(), await join(cluster, "gone")
    job = await held_by(gone, user)
    await put_into_an_unknown_state(user, "gone")
    coordinator = Reconciler(user, "p")
    await passes(coordinator, SILENT - 10.0)
    assert (await job_now(user, job.id)).attempt == 1
    await passes(coordinator, 300.0)
    back = await job_now(user, job.id)
    assert (back.status, back.attempt, back.preemptions) == ("pending", 2, 1)
    assert (await agent_now(user, "gone")).state == "dead"
    assert not await gone.beat(), "it has ended, should it come back"


async def test_an_agent_in_an_unknown_state_keeps_its_jobs_as_long_as_it_beats(cluster: Cluster) -> None:
    """It may be of a newer version. The rule also holds for one that beats as rarely as any agent may."""
    user, newer = await cluster.core(), await join(cluster, "newer", interval=240.0)
    job = await held_by(newer, user)
    await put_into_an_unknown_state(user, "newer")
    coordinator = Reconciler(user, "p")
    for _ in range(4):
        await passes(coordinator, SILENT - 10.0)
        assert await newer.beat()
    assert (await job_now(user, job.id)).attempt == 1
    assert (await agent_now(user, "newer")).state == "asleep"


async def test_a_watcher_that_could_not_look_counts_no_silence_of_an_agent_in_an_unknown_state(
    cluster: Cluster,
) -> None:
    """Perhaps the agent could not write either."""
    user, newer = await cluster.core(), await join(cluster, "newer")
    job = await held_by(newer, user)
    await put_into_an_unknown_state(user, "newer")
    coordinator = Reconciler(user, "p")
    await passes(coordinator, SILENT / 2)
    await cluster.clock.sleep(SILENT)
    await passes(coordinator, SILENT / 2 - 20.0)
    assert await newer.beat()
    assert (await job_now(user, job.id)).attempt == 1


async def test_runs_without_the_lease_find_a_silent_agent_in_an_unknown_state_too(cluster: Cluster) -> None:
    """This happens if only a timer runs the coordinator."""
    user, gone = await cluster.core(), await join(cluster, "gone")
    job = await held_by(gone, user)
    await put_into_an_unknown_state(user, "gone")
    for _ in range(int(SILENT / 9) + 3):  # each looks twice, for nine seconds
        await Reconciler(user, "once").run_once()
    assert (await job_now(user, job.id)).attempt == 2


async def test_a_job_that_an_agent_in_an_unknown_state_has_dropped_is_requeued(cluster: Cluster) -> None:
    """In every state, an agent's beat lists the jobs that it holds."""
    user, newer = await cluster.core(), await join(cluster, "newer")
    job = await held_by(newer, user)
    await put_into_an_unknown_state(user, "newer")
    newer.holding.clear()
    beating = asyncio.create_task(newer.beat_for_ever(60.0))
    await passes(Reconciler(user, "p"), 1000.0)
    assert (await job_now(user, job.id)).attempt == 2
    beating.cancel()
