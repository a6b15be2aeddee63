"""Gathering gangs in spite of odd records, agents with problems, and overwritten plans."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fray_coordinator.jobs import stopping
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys, JobKeys, PoolKeys
from fray_layouts.records import Doorbell
from tests.support.scripted_agents import job_now
from tests.support.scripted_members import ONE_CORE, gang, gathering, members_of, vote_all
from tests.support.virtual import Cluster


async def test_one_odd_record_does_not_keep_the_others_from_being_gathered(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    odd, job = await gang(found), await gang(found)
    cluster.connections[-1].spoilt.append(("get", JobKeys.key(odd.id)))
    await found.step()
    assert len(members_of(await job_now(found.core, job.id))) == 2
    assert JobKeys.key(odd.id) in found.scheduler.problems


async def test_a_fault_of_a_member_is_no_problem_once_no_gang_forms(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    job = await gang(found)
    await found.step()
    cluster.connections[-1].spoilt.append(("get_if_changed", AgentKeys.key("b")))
    await cluster.clock.sleep(found.core.settings.repair_interval)
    await found.scheduler.step(woken=True)
    assert AgentKeys.key("b") in found.scheduler.problems
    await stopping.stop(found.core, job.id, "enough")
    await cluster.clock.sleep(found.core.settings.repair_interval)
    await found.scheduler.step()
    assert found.scheduler.problems == {}


@pytest.mark.parametrize("known", [False, True])
async def test_a_plan_and_a_doorbell_that_somebody_overwrote_are_written_anew(cluster: Cluster, known: bool) -> None:
    found = await gathering(cluster, "a", "b")
    job = await gang(found)
    if known:
        await found.step()
    for key in (PoolKeys.plan("default"), PoolKeys.doorbell("default")):
        await found.core.store.put(key, b"[]", ANY)
    await cluster.clock.sleep(found.core.settings.repair_interval)
    await found.step()
    for member in found.members:
        assert await member.plan() == [JobKeys.key(job.id)]
    assert await found.core.records.read(PoolKeys.doorbell("default"), Doorbell) is not None


async def test_an_agent_with_a_warning_for_people_is_chosen_anyway(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", problem="what environments the pool names cannot be read")
    job = await gang(found)
    await found.step()
    assert members_of(await job_now(found.core, job.id)) == {"a": [0], "b": [1]}


async def test_an_agent_that_refused_is_asked_again_when_no_other_is_left(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    job = await gang(found)
    await found.step()
    await found.members[1].vote(job.id, phase="refused")
    await found.step()
    await found.members[1].vote(job.id)
    await found.step()
    left_out = await job_now(found.core, job.id)
    assert (members_of(left_out), left_out.placement and left_out.placement.refused) == ({}, ["b"])
    await cluster.clock.sleep(2 * found.core.settings.repair_interval)
    await found.step()
    again = await job_now(found.core, job.id)
    assert (members_of(again), again.placement and again.placement.refused) == ({"a": [0], "b": [1]}, [])


@pytest.mark.parametrize("when", ["assigned", "voted"])
async def test_a_record_that_becomes_odd_does_not_keep_the_others_from_starting(cluster: Cluster, when: str) -> None:
    two = replace(ONE_CORE, cpu=2000)
    found = await gathering(cluster, "a", "b", capacity=two, free=two)
    odd, job = await gang(found), await gang(found)
    await found.step()
    if when == "voted":
        await vote_all(found, odd.id)
    await found.core.store.put(JobKeys.key(odd.id), b"[]", ANY)
    await found.step()
    await vote_all(found, job.id)
    await found.step()
    await found.step()
    assert (await job_now(found.core, job.id)).status == "running"
