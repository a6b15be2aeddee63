"""Agents whose records were overwritten: the jobs that they hold are served all the same, in virtual time."""

from __future__ import annotations

import pytest

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord
from tests.support.scripted_agents import Hand, agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster

SILENT = 1200.0
"""Five of the longest intervals that any agent promises by the default settings."""


async def held_by(agent: Hand, user: Core) -> JobRecord:
    """A job that the agent runs, and that no entry of the index points at."""
    job = await launch(user)
    await agent.claim()
    await user.store.delete(entry_of(job).key())
    return job


async def overwrite(core: Core, agent: str, data: bytes) -> None:
    await core.store.put(AgentKeys.key(agent), data, ANY)


@pytest.mark.parametrize("odd", ["garbage", "another's record"])
async def test_a_dead_agents_job_is_put_back_though_its_record_was_overwritten(cluster: Cluster, odd: str) -> None:
    """It could not beat over that either; once its trust must have run out, it is as dead as any other."""

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
    """A newer version may write what this one does not understand."""

    user, newer = await cluster.core(), await join(cluster, "newer")
    job = await held_by(newer, user)
    coordinator = Reconciler(user, "p")
    for beat in range(30):
        await overwrite(user, "newer", b'{"beat": "%d"}' % beat)
        await passes(coordinator, SILENT / 10)
    assert (await job_now(user, job.id)).attempt == 1
    with pytest.raises(BadRecord):
        await user.records.read(AgentKeys.key("newer"), AgentRecord)


async def test_a_dead_agents_job_is_put_back_though_its_parents_record_was_overwritten(cluster: Cluster) -> None:
    """It waits for its parent then, as all of that parent's children do."""

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


async def test_what_nobody_needs_is_left_as_it_lies(cluster: Cluster) -> None:
    """An odd object among the agents whose name no job says."""

    user = await cluster.core()
    await overwrite(user, "odd", b"garbage")
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 2 * SILENT)
    lies = await user.store.get(AgentKeys.key("odd"))
    assert lies is not None
    assert lies.data == b"garbage"
