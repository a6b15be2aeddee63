"""Rings that are heard just before a request fails: the agent looks again soon, not a repair interval later."""

from __future__ import annotations

import asyncio
import math

import pytest
from msgspec.structs import replace

from fray_agents.agent.pool_notices import PlanReader
from fray_coordinator.errors import StoreError
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.placements.pool_plans import PoolPlans
from fray_coordinator.placements.tables import OwnerTable
from fray_coordinator.store.interface import ABSENT
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import JobRecord, PoolPlan, Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.members import trusted_member
from tests.support.scripted_agents import job_now
from tests.support.scripted_members import gang, gathering, members_of
from tests.support.virtual import Cluster
from tests.unit.test_index_search import LIST, LONGEST_PAUSE, searching, submitted


async def test_a_job_is_claimed_though_the_listing_after_its_ring_fails(cluster: Cluster) -> None:
    client = await cluster.core()
    async with searching(cluster) as agent:
        await asyncio.sleep(30)
        cluster.connections[-1].refused.append(LIST)
        wanted = await submitted(client)
        await asyncio.sleep(LONGEST_PAUSE)
        cluster.connections[-1].refused.clear()
        await agent.claims(wanted, within=LONGEST_PAUSE)


async def test_a_gang_is_seen_though_the_listing_after_its_ring_fails(cluster: Cluster) -> None:
    core, table = await cluster.core(), OwnerTable(await cluster.core())
    await table.refresh()
    wants = {"name": "g", "entrypoint": {"command": ["x"]}, "replicas": 2}
    (done,) = await submit(core, [parse_spec(wants)])
    cluster.connections[-1].refused.append(("list", PlacementKey.area))
    with pytest.raises(StoreError):
        await table.refresh()
    cluster.connections[-1].refused.clear()
    await table.refresh()
    assert [*table.owners()] == [done.job.id]


async def test_a_plan_that_could_not_be_written_anew_is_written_in_the_next_step(cluster: Cluster) -> None:
    """It names the owner already, but the agents look at an owner only when a plan is written."""
    core, wanted = await cluster.core(), {"default": {"agent": ["jobs/g.json"]}}
    plans, reader = PoolPlans(core), PlanReader(trusted_member(core, Resources(cpu=1000)))
    problems: dict[str, str] = {}
    await plans.publish(wanted, problems)
    assert await reader.read() == ["jobs/g.json"]
    plans.note_change(["default"])
    cluster.connections[-1].refused.append(("put", PoolKeys.plan("default")))
    await plans.publish(wanted, problems)
    assert list(problems) == [PoolKeys.plan("default")]
    cluster.connections[-1].refused.clear()
    await plans.publish(wanted, problems)
    assert await reader.read() == ["jobs/g.json"]
    await plans.publish(wanted, problems)
    assert await reader.read() == [], "once is enough"


async def test_members_are_told_though_the_step_that_assigned_them_was_cut_short(cluster: Cluster) -> None:
    """They had the same gang before, so the plan names it already."""
    found = await gathering(cluster, "a", "b", "c", "d")
    first, second = await gang(found), await gang(found)
    await found.step()
    for job in (first, second):
        await found.core.records.change(JobKeys.key(job.id), JobRecord, _without_members)
    told = await found.core.store.get(PoolKeys.plan("default"))
    connection = cluster.connections[-1]

    async def outage() -> None:
        connection.cut = True

    connection.before["put", JobKeys.key(second.id)] = outage
    with pytest.raises(StoreError):
        await found.step()
    connection.cut = False
    await stop(found.core, second.id, "enough")
    assert members_of(await job_now(found.core, first.id))
    await found.step()
    again = await found.core.store.get(PoolKeys.plan("default"))
    assert again is not None
    assert told is not None
    assert again.version != told.version


def _without_members(job: JobRecord) -> JobRecord:
    assert job.placement is not None
    return replace(job, placement=replace(job.placement, round=job.placement.round + 1, members=[]))


async def test_a_plan_that_cannot_be_read_is_read_again_soon(cluster: Cluster) -> None:
    core = await cluster.core()
    reader = PlanReader(trusted_member(core, Resources(cpu=1000)))
    await core.records.put(PoolKeys.plan("default"), PoolPlan(owners={"agent": ["jobs/g.json"]}), ABSENT)
    cluster.connections[-1].refused.append(("get_if_changed", PoolKeys.plan("default")))
    with pytest.raises(StoreError):
        await reader.read()
    cluster.connections[-1].refused.clear()
    assert 0.0 < reader.due_at - core.clock.boottime() <= 10.0
    assert await reader.read() == ["jobs/g.json"]
    assert reader.due_at - core.clock.boottime() > 40.0, "the next bell tells"


async def test_a_plan_for_which_it_rings_while_it_is_read_is_read_once_more(cluster: Cluster) -> None:
    core = await cluster.core()
    reader = PlanReader(trusted_member(core, Resources(cpu=1000)))

    async def ring() -> None:
        reader.due_at = -math.inf

    cluster.connections[-1].before["get_if_changed", PoolKeys.plan("default")] = ring
    await reader.read()
    assert reader.due_at == -math.inf
