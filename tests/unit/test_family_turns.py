"""The pass lets families go first and ends their turns, with scripted agents on a store in memory."""

from __future__ import annotations

from typing import Any

import pytest

from fray_coordinator.protocol.placements.families import families_first
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ANY
from fray_layouts.index_keys import family_digits
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, Ask, Holding, JobRecord, Placement, Resources
from tests.support.scripted_agents import ScriptedAgent, job_now, launch
from tests.support.scripted_members import ONE_CORE, Gathering, Member, gang, gathering, members_of, vote_all
from tests.support.virtual import Cluster

BUSY = Resources(memory=2**36, disk=2**36)


async def parent_and_gang(cluster: Cluster) -> tuple[Gathering, JobRecord, JobRecord]:
    """Agents a and b of one core each; a parent that runs on a; a gang that waits for both agents."""
    found = await gathering(cluster, "a", "b")
    parent = await launch(found.core, name="parent")
    agent = ScriptedAgent(found.core, "a")
    await agent.claim(listed=False)
    await found.core.store.delete(entry_of(parent).key())
    found.members[0].held[parent.id] = Holding(attempt=1, phase="running", since=found.core.now(), takes=ONE_CORE)
    await found.members[0].beat(free=BUSY)
    job = await gang(found)
    await found.step()
    assert members_of(await job_now(found.core, job.id)) == {"a": [1], "b": [0]}
    return found, parent, job


async def child_of(found: Gathering, parent: JobRecord, **spec: Any) -> JobRecord:
    await found.core.clock.sleep(1.0)
    return await launch(found.core, name="child", parent=parent.id, **spec)


async def ask(member: Member, child: JobRecord, owner: JobRecord) -> None:
    """The agent keeps the child out for the owner's sake, and says so."""
    await member.beat(asks=[Ask(entry=entry_of(child).key(), owner=owner.id, since=member.core.now())])


async def placement(found: Gathering, job: JobRecord) -> Placement:
    now = (await job_now(found.core, job.id)).placement
    assert now is not None
    return now


async def test_a_child_that_is_kept_out_goes_first_and_the_gang_forms_after_it(cluster: Cluster) -> None:
    found, parent, job = await parent_and_gang(cluster)
    a, b = found.members
    await b.vote(job.id)
    child = await child_of(found, parent)
    await ask(b, child, job)
    found.hinted.clear()
    await found.step()
    now = await placement(found, job)
    assert (now.round, set(families_first(now))) == (2, {family_digits(parent.id)})
    assert members_of(await job_now(found.core, job.id)) == {"a": [1], "b": [0]}, "its members stay"
    assert found.hinted == ["b.example:1", "a.example:1"]
    a.held.pop(parent.id)
    await a.beat(free=ONE_CORE)
    await b.beat(asks=[])
    await vote_all(found, job.id)
    await found.step()
    assert (await job_now(found.core, job.id)).status == "gathering", "the family goes first, so no vote counts"
    await found.core.clock.sleep(2 * found.core.settings.repair_interval)
    await found.step()
    now = await placement(found, job)
    assert (now.round, families_first(now)) == (2, frozenset()), "its turn is over"
    await found.step()
    assert (await job_now(found.core, job.id)).status == "running"


async def test_members_that_must_not_vote_are_not_taken_for_slow(cluster: Cluster) -> None:
    found, parent, job = await parent_and_gang(cluster)
    await ask(found.members[1], await child_of(found, parent), job)
    for _ in range(6):
        await found.step()
        await found.core.clock.sleep(found.core.settings.repair_interval)
    now = await placement(found, job)
    assert (set(families_first(now)), now.refused) == ({family_digits(parent.id)}, [])


@pytest.mark.parametrize("how", ["a stranger", "stopped", "at another attempt", "its parent is gone", "no record"])
async def test_who_cannot_start_in_any_case_delays_nobody(cluster: Cluster, how: str) -> None:
    found, parent, job = await parent_and_gang(cluster)
    child = await (launch(found.core, name="child") if how == "a stranger" else child_of(found, parent))
    await ask(found.members[1], child, job)
    record = await job_now(found.core, child.id)
    if how == "stopped":
        record.status = "stopped"
    elif how == "at another attempt":
        record.attempt = 2
    elif how == "its parent is gone":
        await found.core.store.delete(JobKeys.key(parent.id))
    await found.core.records.put(JobKeys.key(child.id), record, ANY)
    if how == "no record":
        await found.core.store.delete(JobKeys.key(child.id))
    reads = found.core.store.usage.reads
    await found.step()
    assert (await placement(found, job)).first == []
    before = found.core.store.usage.reads
    assert before - reads < 30
    for _ in range(3):
        await found.step(reads_agents=False)
    if how != "a stranger":
        assert child.id not in str(cluster.connections[-1].asked[-12:]), "it is not read in each step"


async def test_a_child_gang_without_members_comes_before_the_gang_that_waits_for_its_parent(cluster: Cluster) -> None:
    found, parent, job = await parent_and_gang(cluster)
    child = await child_of(found, parent, replicas=2, resources={"cpu": 0.5})
    await found.step()
    assert families_first(await placement(found, job)) == {family_digits(parent.id)}
    await found.step()
    assert members_of(await job_now(found.core, child.id)) == {"b": [0, 1]}, "no room that its parent uses"
    await vote_all(found, child.id)
    await found.step()
    assert (await job_now(found.core, child.id)).status == "running"


async def test_a_job_of_anybody_is_let_in_after_the_hold_limit_of_the_pool(cluster: Cluster) -> None:
    found, _, job = await parent_and_gang(cluster)
    limits = AgentPoolRecord(hold_limit=100.0)
    await found.core.records.put(PoolKeys.record("default"), limits, ANY)
    await found.core.clock.sleep(1.0)
    stranger = await launch(found.core, name="stranger")
    await ask(found.members[1], stranger, job)
    await found.step()
    assert (await placement(found, job)).first == []
    await found.core.clock.sleep(100.0)
    await found.step()
    now = await placement(found, job)
    assert (set(families_first(now)), now.limit_turns) == ({family_digits(stranger.id)}, 1)


async def test_another_gang_of_an_earlier_owner_s_members_is_let_in_before_both(cluster: Cluster) -> None:
    """The family runs on a member of an earlier gang, and waits for room that a later gang keeps."""
    found, parent, job = await parent_and_gang(cluster)
    await found.core.clock.sleep(1.0)
    others = (await gathering(cluster, "c", "d", pool="other")).members
    found.members += others
    late = await launch(found.core, name="late", replicas=2, pool="other")
    await found.step()
    assert set(members_of(await job_now(found.core, late.id))) == {"c", "d"}
    await ask(others[0], await child_of(found, parent, pool="other"), late)
    await found.step()
    assert families_first(await placement(found, late)) == {family_digits(parent.id)}
    assert (await placement(found, job)).first == []


async def test_while_nothing_is_kept_out_families_cost_no_request(cluster: Cluster) -> None:
    found, _, job = await parent_and_gang(cluster)
    await found.step()
    connection = cluster.connections[-1]
    connection.asked.clear()
    await found.step(reads_agents=False)
    assert {key for _, key in connection.asked} == {"placements/bell", JobKeys.key(job.id)}


async def test_a_turn_costs_two_writes_and_the_reads_of_who_asks(cluster: Cluster) -> None:
    found, parent, job = await parent_and_gang(cluster)
    await ask(found.members[1], await child_of(found, parent), job)
    connection = cluster.connections[-1]
    connection.asked.clear()
    await found.step()
    assert [key for verb, key in connection.asked if verb == "put"] == [JobKeys.key(job.id)]
    reads = [key for verb, key in connection.asked if verb == "get" and key.startswith("jobs/")]
    assert len(reads) == 2, "the child and its parent"
    found.members[0].held.pop(parent.id)
    await found.members[0].beat(free=ONE_CORE)
    await found.members[1].beat(asks=[])
    await found.core.clock.sleep(2 * found.core.settings.repair_interval)
    connection.asked.clear()
    await found.step()
    assert [key for verb, key in connection.asked if verb == "put"] == [JobKeys.key(job.id)]
