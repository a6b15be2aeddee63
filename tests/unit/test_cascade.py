"""Children end with the attempt of their parent that launched them, unless a later attempt adopts them."""

from __future__ import annotations

from typing import Any

import pytest

from fray_coordinator.errors import ParentNotRunning
from fray_coordinator.jobs import pending_index, stopping
from fray_coordinator.jobs.claiming import Claimed, NotClaimed, try_claim
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import Holding, JobRecord
from tests.support.scripted_agents import ScriptedAgent, job_now, join, launch
from tests.support.virtual import Cluster

SPEC: dict[str, Any] = {"name": "job", "entrypoint": {"command": ["true"]}}


async def _family(cluster: Cluster, **child: Any) -> tuple[ScriptedAgent, Any, JobRecord]:
    """An agent that runs a parent, the parent's lease, and a child."""
    agent = await join(cluster, "a")
    parent = await launch(agent.core, name="parent", max_retries_failure=3)
    held = await agent.claim()
    await pending_index.delete_entry(agent.core, entry_of(held.record))
    return agent, held, await launch(agent.core, name="child", parent=parent.id, **child)


async def test_a_child_is_entered_before_it_exists_and_ends_with_its_parent(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster)
    assert cluster.keys("children/") == [ChildKey(held.record.id, 1, child.id).key()]
    assert await stopping.stop_children(agent.core, held.record.id) == 1
    assert (await job_now(agent.core, child.id)).status == "pending"
    await agent.end(held)
    assert await stopping.stop_children(agent.core, held.record.id) == 0
    assert (await job_now(agent.core, child.id)).status == "stopped"
    assert cluster.keys("pending/") == []


async def test_the_pass_ends_the_children_of_a_parent_that_ended(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster)
    await agent.end(held)
    await Reconciler(await cluster.core(), "p").try_pass()
    assert (await job_now(agent.core, child.id)).status == "stopped"
    await cluster.clock.sleep(60.0)


async def test_a_detached_child_outlives_its_parent(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster, detached=True)
    await agent.end(held)
    await Reconciler(await cluster.core(), "p").try_pass()
    assert (await job_now(agent.core, child.id)).status == "pending"
    assert (await agent.claim()).record.id == child.id


async def test_a_child_of_an_attempt_that_is_over_is_stopped_by_its_claimer(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster)
    await agent.end(held)
    assert await agent.try_claim() == NotClaimed(None, 0)
    stopped = await job_now(agent.core, child.id)
    assert stopped.stop is not None
    assert (stopped.status, stopped.stop.by) == ("stopped", "parent")


async def test_a_job_that_does_not_run_gets_no_children(cluster: Cluster) -> None:
    user = await cluster.core()
    parent = await launch(user)
    with pytest.raises(ParentNotRunning, match="pending"):
        await launch(user, parent=parent.id)
    with pytest.raises(ParentNotRunning, match="unknown"):
        await launch(user, parent="nobody-1")
    assert cluster.keys("children/") == []


async def _second_attempt(cluster: Cluster, agent: ScriptedAgent, held: Any) -> Any:
    """The parent fails and runs again; other entries of the index wait."""
    again = await agent.end(held, "exited")
    assert again is not None
    await cluster.clock.sleep(5.0)
    lease = await agent.core.records.read(JobKeys.key(again.id), JobRecord)
    assert lease is not None
    claimed = await try_claim(agent.core, entry_of(lease.record), agent.id, agent.id)
    assert isinstance(claimed, Claimed)
    agent.holding[again.id] = Holding(attempt=claimed.job.record.attempt)
    await agent.beat()
    return claimed.job


async def test_the_next_attempt_adopts_the_child_that_it_submits_again(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster, id="mine")
    again = await _second_attempt(cluster, agent, held)
    adopted = await launch(agent.core, name="child", parent=again.record.id, id="mine")
    assert adopted.id == child.id
    assert adopted.parent is not None
    assert adopted.parent.attempt == 2
    assert ChildKey(again.record.id, 2, child.id).key() in cluster.keys("children/")
    await Reconciler(await cluster.core(), "p").try_pass()
    await cluster.clock.sleep(500.0)
    await stopping.stop_children(agent.core, again.record.id)
    assert (await job_now(agent.core, child.id)).status == "pending"
    assert cluster.keys("children/") == [ChildKey(again.record.id, 2, child.id).key()]


async def test_a_child_with_an_id_that_is_not_adopted_in_time_is_stopped(cluster: Cluster) -> None:
    agent, held, child = await _family(cluster, id="mine")
    again = await _second_attempt(cluster, agent, held)
    await stopping.stop_children(agent.core, again.record.id)
    assert (await job_now(agent.core, child.id)).status == "pending"
    await cluster.clock.sleep(agent.core.settings.repair_interval + 1)
    await stopping.stop_children(agent.core, again.record.id)
    assert (await job_now(agent.core, child.id)).status == "stopped"


async def test_a_cascade_that_is_overtaken_by_an_adoption_lets_the_child_live(cluster: Cluster) -> None:
    """The cascade judged the child as one of attempt 1; before it writes, attempt 2 adopts the child."""

    agent, held, child = await _family(cluster, id="mine")
    again = await _second_attempt(cluster, agent, held)
    await cluster.clock.sleep(agent.core.settings.repair_interval + 1)
    slow = await cluster.core()

    async def adopt() -> None:
        await launch(agent.core, name="child", parent=again.record.id, id="mine")

    cluster.connections[-1].before["put", "jobs/"] = adopt
    await stopping.stop_children(slow, again.record.id)
    kept = await job_now(agent.core, child.id)
    assert kept.parent is not None
    assert (kept.status, kept.stop, kept.parent.attempt) == ("pending", None, 2)
