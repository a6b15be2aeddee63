"""Gathering gangs in spite of odd records, agents with problems, and overwritten plans."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.jobs import notifications, stopping
from fray_coordinator.placements import pool_plans, reservations, scheduler, tables
from fray_coordinator.protocol.placements import assignment
from fray_coordinator.store.interface import ANY
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import AgentKeys, JobKeys, PoolKeys, ReservationKeys
from fray_layouts.records import Doorbell, Holding, Resources
from tests.support.scripted_agents import job_now
from tests.support.scripted_members import ONE_CORE, Gathering, gang, gathering, members_of, vote_all
from tests.support.unforeseen import raising_for
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


async def test_a_gang_whose_record_is_not_answered_for_any_more_keeps_no_other_from_starting(cluster: Cluster) -> None:
    two = replace(ONE_CORE, cpu=2000)
    found = await gathering(cluster, "a", "b", capacity=two, free=two)
    odd, job = await gang(found), await gang(found)
    await found.step()
    await vote_all(found, job.id)
    cluster.connections[-1].unanswered.append(("get_if_changed", JobKeys.key(odd.id)))
    begun = cluster.clock.boottime()
    await found.step()
    assert (await job_now(found.core, job.id)).status == "running"
    assert "HTTP 500" in found.scheduler.problems[JobKeys.key(odd.id)]
    assert cluster.clock.boottime() - begun < 10.0


CONTRADICTORY = {
    "low": {"low": 10**12},
    "same": {"same": "rack", "state": "held"},
    "bundle": {"placement": {"round": 1, "members": [{"agent": "a", "bundles": [1]}]}},
    "bundle in an unknown state": {
        "state": "paused",
        "placement": {"round": 1, "members": [{"agent": "a", "bundles": [1]}]},
    },
    "slices": {"parts": [{"gang": {"slices": 2}}], "state": "held"},
}


@pytest.mark.parametrize("fields", CONTRADICTORY.values(), ids=CONTRADICTORY)
async def test_a_reservation_that_contradicts_itself_is_named_and_keeps_nobody_waiting(
    cluster: Cluster, fields: dict[str, Any]
) -> None:
    found = await gathering(cluster, "a", "b")
    key = await reservation(found, **fields)
    job = await gang(found)
    await found.step()
    assert members_of(await job_now(found.core, job.id)) == {"a": [0], "b": [1]}
    assert key in found.scheduler.problems


async def test_a_state_that_is_not_known_is_left_alone_with_its_room(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    placed = {"round": 1, "members": [{"agent": "a", "bundles": [0]}]}
    key = await reservation(found, state="paused", placement=placed)
    before = await found.core.store.get(key)
    job = await gang(found, replicas=2)
    await found.step()
    assert (await job_now(found.core, job.id)).placement is None, "one of the two hosts is taken"
    assert (found.scheduler.problems, await found.core.store.get(key)) == ({}, before)


FORMING: list[tuple[object, str]] = [
    (tables, "owner_of"),
    (assignment._FreeRoom, "serve"),
    (scheduler, "without"),
    (scheduler, "missing_votes"),
]


@pytest.mark.parametrize(("where", "function"), FORMING, ids=[name for _, name in FORMING])
async def test_an_error_that_nobody_foresaw_in_one_owner_is_named_and_the_others_are_served(
    cluster: Cluster, where: object, function: str
) -> None:
    found = await gathering(cluster, "a", "b")
    odd, job = await gang(found), await gang(found)
    with raising_for(odd.id, where, function):
        await found.step()
        assert "unforeseen" in found.scheduler.problems.get(JobKeys.key(odd.id), "")
        await stopping.stop(found.core, odd.id, "its room is needed")
        await found.step()
    assert members_of(await job_now(found.core, job.id)) == {"a": [0], "b": [1]}


async def test_an_error_in_an_owner_that_runs_is_named_and_the_others_are_served(cluster: Cluster) -> None:
    two = replace(ONE_CORE, cpu=2000)
    found = await gathering(cluster, "a", "b", capacity=two, free=two)
    odd = await gang(found)
    await found.step()
    await vote_all(found, odd.id)
    await found.step()
    job = await gang(found)
    with raising_for(odd.id, assignment._FreeRoom, "_take"):
        await found.step()
    assert members_of(await job_now(found.core, job.id))
    assert "unforeseen" in found.scheduler.problems[JobKeys.key(odd.id)]


HELD: list[tuple[object, str]] = [
    (reservations, "units_of"),
    (reservations, "owner_of_reservation"),
    (reservations, "with_members"),
    (reservations, "jobs_of"),
]


@pytest.mark.parametrize(("where", "function"), HELD, ids=[name for _, name in HELD])
async def test_an_error_in_a_held_reservation_is_named_and_the_others_are_served(
    cluster: Cluster, where: object, function: str
) -> None:
    two = replace(ONE_CORE, cpu=2000)
    found = await gathering(cluster, "a", "b", capacity=two, free=two)
    key = await reservation(found, state="held", placement={"round": 1, "members": [{"agent": "a", "bundles": [0]}]})
    job = await gang(found)
    with raising_for("odd-1", where, function):
        await found.step()
    assert members_of(await job_now(found.core, job.id))
    assert "unforeseen" in found.scheduler.problems[key]


async def test_a_plan_names_a_held_reservation_only_if_its_agent_lacks_some_of_its_bundles(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    member = found.members[0]
    member.held["odd-1"] = Holding(attempt=1, phase="reserved", round=1, bundles=[0])
    await member.beat(free=Resources())
    key = await reservation(found, state="held", placement={"round": 1, "members": [{"agent": "a", "bundles": [0]}]})
    await gang(found)  # so that there is something to plan
    await found.step()
    assert await member.plan() == []
    del member.held["odd-1"]
    await member.beat()
    await found.step()
    assert await member.plan() == [key]


async def test_an_error_in_one_agent_is_named_and_the_others_are_given_bundles(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "odd")
    job = await gang(found)
    with raising_for("odd", scheduler, "host_view"):
        await found.step()
    assert members_of(await job_now(found.core, job.id)) == {"a": [0], "b": [1]}
    assert "unforeseen" in found.scheduler.problems[AgentKeys.key("odd")]


async def test_a_plan_that_cannot_be_written_is_named_and_the_others_are_written(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    found.members += (await gathering(cluster, "c", "d", pool="other", core=found.core)).members
    await gang(found)
    job = await gang(found, pool="other")
    with raising_for("default", pool_plans.PoolPlans, "_write"):
        await found.step()
    assert await found.members[2].plan() == [JobKeys.key(job.id)]
    assert "unforeseen" in found.scheduler.problems[PoolKeys.plan("default")]


async def reservation(found: Gathering, **fields: Any) -> str:
    """Write a reservation of one bundle like a foreign program, with its entry; return the record's key."""
    now = found.core.now()
    record = {"id": "odd-1", "kind": "reservation", "submitted_at": now, "expires_at": now + 3600.0, "low": 1}
    parts = [{"gang": {"resources": {"cpu": 1.0}}}]
    key = ReservationKeys.key("odd-1")
    await found.core.store.put(key, json.dumps({**record, "parts": parts, **fields}).encode(), ANY)
    await found.core.store.put(PlacementKey("default", 0, now, "odd-1", "reservation").key(), b"{}", ANY)
    await notifications.ring_placements_bell(found.core)
    return key
