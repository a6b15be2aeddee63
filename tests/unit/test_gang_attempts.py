"""Attempts of a gang that follow one another, and gangs that end before they start: with scripted agents in memory."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import commit, stopping
from fray_coordinator.jobs.commit import store_exit
from fray_coordinator.protocol.stopping import adopted
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import (
    AttemptExit,
    JobRecord,
    ReplicaExit,
    Resources,
)
from tests.support.scripted_agents import job_now, launch
from tests.support.scripted_members import ONE_CORE, Gathering, gang, gathering, members_of, vote_all
from tests.support.virtual import Cluster

HOURS = 5 * 3600.0


async def started(found: Gathering, **spec: Any) -> Stored[JobRecord]:
    job = await gang(found, **spec)
    await found.step()
    await vote_all(found, job.id)
    await found.step()
    stored = await found.core.records.read(JobKeys.key(job.id), JobRecord)
    assert stored is not None
    assert stored.record.status == "running"
    return stored


async def set_status(found: Gathering, job: str, status: str) -> None:
    await found.core.records.change(JobKeys.key(job), JobRecord, lambda now: replace(now, status=status))


async def voted_child(found: Gathering, **spec: Any) -> tuple[JobRecord, JobRecord]:
    """A running parent, and a gang that is its child and has all votes."""
    parent = await launch(found.core, name="parent")
    await set_status(found, parent.id, "running")
    job = await gang(found, parent=parent.id, **spec)
    await found.step()
    await vote_all(found, job.id)
    return parent, job


async def lost(found: Gathering, stored: Stored[JobRecord], agent: str) -> JobRecord:
    ended = await commit.end_without(found.core, stored, agent)
    assert ended is not None
    return ended.record


async def test_agents_that_had_a_gang_before_are_told_that_they_have_it_again(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    stored = await started(found)
    told = await found.core.store.get(PoolKeys.plan("default"))
    assert told is not None
    again = await lost(found, stored, "b")
    for member in found.members:
        await member.vote(again.id)  # which lists nothing: the attempt has ended
    await cluster.clock.sleep(again.not_before - found.core.now())
    await found.step()
    assert set(members_of(await job_now(found.core, again.id))) == {"a", "b"}
    now = await found.core.store.get(PoolKeys.plan("default"))
    assert now is not None
    assert now.version != told.version


async def test_the_scheduler_knows_when_a_gang_may_be_given_members_again(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    again = await lost(found, await started(found), "b")
    assert found.scheduler.due_in() == float("inf"), "the record was not read yet"
    await found.step()
    assert members_of(await job_now(found.core, again.id)) == {}
    assert found.scheduler.due_in() == pytest.approx(again.not_before - found.core.now())
    await cluster.clock.sleep(found.scheduler.due_in())
    await found.step(reads_agents=False)
    assert set(members_of(await job_now(found.core, again.id))) == {"a", "b"}
    assert found.scheduler.due_in() == float("inf")


async def test_a_gang_does_not_wait_until_a_clock_that_was_set_back_is_where_it_was(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    again = await lost(found, await started(found), "b")
    ahead = [replace(past, ended_at=past.ended_at + HOURS) for past in again.history]
    await found.core.records.change(
        JobKeys.key(again.id),
        JobRecord,
        lambda now: replace(now, history=ahead, not_before=now.not_before + HOURS),
    )
    await found.step()
    assert set(members_of(await job_now(found.core, again.id))) == {"a", "b"}
    assert found.scheduler.due_in() == float("inf")


async def test_the_votes_of_members_that_still_end_the_last_attempt_are_seen_without_a_hint(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    again = await lost(found, await started(found), "b")
    await cluster.clock.sleep(again.not_before - found.core.now())
    for member in found.members:
        await member.beat(free=Resources())  # its replica is told to end
    await found.step()
    assert set(members_of(await job_now(found.core, again.id))) == {"a", "b"}
    for member in found.members:
        await member.vote(again.id)
    await found.step(reads_agents=False)
    assert (await job_now(found.core, again.id)).status == "running"


async def test_the_next_attempt_waits_for_agents_that_list_the_last_one(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    stored = await started(found)
    job = stored.record
    again = await lost(found, stored, "a")
    assert (again.status, again.attempt) == ("gathering", 2)
    await cluster.clock.sleep(again.not_before - found.core.now())
    hangs = found.members[0]
    await hangs.beat(free=Resources())  # it has not read yet that its replica's attempt ended
    await found.step()
    assert set(members_of(await job_now(found.core, job.id))) == {"b", "c"}, "who was lost may be so again"
    for member in found.members[1:]:
        await member.vote(job.id)
    await found.step()
    assert (await job_now(found.core, job.id)).status == "gathering"
    await hangs.vote(job.id)  # now that nothing is left of the last one
    await found.step(reads_agents=False)
    assert (await job_now(found.core, job.id)).status == "running"


async def test_the_next_attempt_is_where_the_last_one_was_though_that_is_not_gone_yet(cluster: Cluster) -> None:
    found = await gathering(cluster, "m", "n")
    stored = await started(found, max_retries_failure=1)
    ended = await commit.end_member(found.core, stored, "n", [await failure(found.core, stored.record, "n")])
    found.members += (await gathering(cluster, "a", "b")).members
    await cluster.clock.sleep(ended.record.not_before - found.core.now())
    for member in found.members[:2]:
        await member.beat(free=Resources())
    await found.step()
    assert set(members_of(await job_now(found.core, ended.record.id))) == {"m", "n"}


async def failure(core: Core, job: JobRecord, agent: str) -> ReplicaExit:
    """The exit of the agent's failed replica, as it is stored."""
    left = ReplicaExit(agent=agent, host=agent, exit=AttemptExit(kind="exited"), ended_at=core.now())
    return await store_exit(core, job, members_of(job)[agent][0], left)


async def test_the_members_of_a_gang_whose_attempt_was_ended_or_is_to_stop_look_at_once(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    stored = await started(found)
    found.hinted.clear()
    await found.step()
    assert found.hinted == []
    await stopping.stop(found.core, stored.record.id, "enough")
    await found.step()
    assert sorted(found.hinted) == ["a.example:1", "b.example:1"]
    found.hinted.clear()
    await found.step()
    assert found.hinted == []
    await lost(found, stored, "b")
    await found.step()
    assert sorted(found.hinted) == ["a.example:1", "b.example:1"]


async def test_a_process_that_cannot_be_killed_does_not_hold_the_next_attempt_for_ever(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c", "d")
    stored = await started(found)
    again = await lost(found, stored, "b")
    await cluster.clock.sleep(again.not_before - found.core.now())
    for member in found.members[:2]:
        await member.beat(free=Resources())
    await found.step()
    for member in found.members[2:]:
        await member.vote(stored.record.id)
    await found.step()
    assert (await job_now(found.core, again.id)).status == "gathering"
    await cluster.clock.sleep(again.spec.grace + 2 * found.core.settings.repair_interval)
    await found.step()
    for member in found.members[2:]:
        await member.vote(stored.record.id)
    await found.step()
    assert (await job_now(found.core, again.id)).status == "running"


async def test_a_gang_that_failed_is_not_assigned_before_its_time(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    again = await lost(found, await started(found), "b")
    for member in found.members:
        await member.vote(again.id)
    await found.step()
    assert members_of(await job_now(found.core, again.id)) == {}
    await cluster.clock.sleep(again.not_before - found.core.now() + 0.1)
    await found.step()
    assert len(members_of(await job_now(found.core, again.id))) == 2


async def test_a_gang_that_waits_too_long_is_stopped(cluster: Cluster) -> None:
    found = await gathering(cluster, "a")
    job = await gang(found, pending_timeout=30.0)
    await found.step()
    await cluster.clock.sleep(31.0)
    await found.step()
    now = await job_now(found.core, job.id)
    assert now.status == "stopped"
    assert "pending_timeout" in now.stop.reason  # type: ignore[union-attr]
    assert cluster.keys("placements/default/") == []


async def test_a_gang_whose_parent_ended_is_stopped_and_not_started(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    parent, job = await voted_child(found)
    await set_status(found, parent.id, "failed")
    await found.step()
    assert (await job_now(found.core, job.id)).status == "stopped"


async def test_a_gang_whose_parent_is_to_adopt_it_waits_and_leaves_the_room_to_others(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    parent, job = await voted_child(found, id="own")
    await set_status(found, parent.id, "pending")
    found.hinted.clear()
    await found.step()
    now = await job_now(found.core, job.id)
    assert (now.status, members_of(now)) == ("gathering", {}), "the parent may need this room to run again"
    for _ in range(3):
        assert found.hinted == ["a.example:1", "b.example:1"], "once, so that they free the room"
        await found.step()
    await set_status(found, parent.id, "running")
    await found.step()
    await vote_all(found, job.id)
    await found.step()
    assert (await job_now(found.core, job.id)).status == "running"


async def test_a_gang_that_its_parent_has_adopted_is_started_without_a_listing(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    parent, job = await voted_child(found, id="own")
    await found.core.records.change(JobKeys.key(parent.id), JobRecord, lambda now: replace(now, attempt=2))
    await found.step()
    assert members_of(await job_now(found.core, job.id)) == {}
    await found.core.records.change(JobKeys.key(job.id), JobRecord, lambda now: adopted(now, parent.id, 2))
    await found.step()
    await vote_all(found, job.id)
    await found.step()
    assert (await job_now(found.core, job.id)).status == "running"


@pytest.mark.parametrize("how", ["damaged", "refused"])
async def test_a_gang_whose_parent_s_record_cannot_be_read_leaves_the_room_to_others(
    cluster: Cluster, how: str
) -> None:
    found = await gathering(cluster, "a", "b")
    parent, first = await voted_child(found)
    other = await gang(found)
    written = await found.core.store.get(JobKeys.key(parent.id))
    assert written is not None
    if how == "damaged":
        await found.core.store.put(JobKeys.key(parent.id), b"[]", ANY)
    else:
        cluster.connections[-1].refused += [("get", JobKeys.key(parent.id)), ("get_if_changed", JobKeys.key(parent.id))]
    asked = len(cluster.connections[-1].asked)
    for _ in range(2):
        await found.step()
        assert JobKeys.key(first.id) in found.scheduler.problems
    assert members_of(await job_now(found.core, first.id)) == {}
    assert sum(key == JobKeys.key(parent.id) for _, key in cluster.connections[-1].asked[asked:]) == 1
    await vote_all(found, first.id)
    await found.step()
    await vote_all(found, other.id)
    await found.step()
    assert (await job_now(found.core, other.id)).status == "running"
    await set_status(found, other.id, "succeeded")
    for member in found.members:
        member.held.clear()
        await member.beat()
    cluster.connections[-1].refused.clear()
    await found.core.store.put(JobKeys.key(parent.id), written.data, ANY)
    await cluster.clock.sleep(found.core.settings.repair_interval)
    await found.step()
    assert found.scheduler.problems == {}
    assert len(members_of(await job_now(found.core, first.id))) == 2


async def test_a_gang_that_is_stopped_while_it_gathers_is_left_alone(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    job = await gang(found)
    await found.step()
    await stopping.stop(found.core, job.id, "enough")
    await vote_all(found, job.id)
    await found.step()
    now = await job_now(found.core, job.id)
    assert (now.status, cluster.keys("placements/default/")) == ("stopped", [])


async def test_a_gang_starts_once_the_agent_that_had_its_last_attempt_no_longer_lists_it(cluster: Cluster) -> None:
    """The agent ends what it had between two looks of the scheduler, and nothing else tells the scheduler."""
    found = await gathering(cluster, "a", "b", "c")
    hangs, *others = found.members
    again = await lost(found, await started(found), hangs.id)
    await cluster.clock.sleep(again.not_before - found.core.now())
    await hangs.beat(free=Resources())
    await found.step()
    for member in others:
        await member.vote(again.id)
    await found.step()
    assert (await job_now(found.core, again.id)).status == "gathering"
    hangs.held.clear()
    await hangs.beat(free=Resources())
    await found.step(reads_agents=False)
    assert (await job_now(found.core, again.id)).status == "running"


async def test_the_next_attempt_waits_for_an_agent_that_was_seen_only_before_it_had_the_last_one(
    cluster: Cluster,
) -> None:
    found = await gathering(cluster, "a", "b", "c")
    job = await gang(found)
    await found.step()
    await vote_all(found, job.id)
    await found.step(reads_agents=False)
    first = await found.core.records.read(JobKeys.key(job.id), JobRecord)
    assert first is not None
    assert (first.record.status, set(members_of(first.record))) == ("running", {"a", "b"})
    again = await lost(found, first, "a")
    await cluster.clock.sleep(again.not_before - found.core.now())
    await found.step(reads_agents=False)
    assert set(members_of(await job_now(found.core, job.id))) == {"b", "c"}
    for member in found.members[1:]:
        await member.vote(job.id)
    await found.step(reads_agents=False)
    assert (await job_now(found.core, job.id)).status == "gathering"
    await found.members[0].vote(job.id)  # now that nothing is left of the last one
    await found.step(reads_agents=False)
    assert (await job_now(found.core, job.id)).status == "running"


async def test_a_gang_that_is_stopped_while_processes_of_its_last_attempt_are_waited_for_is_forgotten(
    cluster: Cluster,
) -> None:
    found = await gathering(cluster, "a", "b", "c")
    hangs, *others = found.members
    for _ in range(2):
        again = await lost(found, await started(found), hangs.id)
        await cluster.clock.sleep(again.not_before - found.core.now())
        await hangs.beat(free=Resources())
        await found.step()
        for member in others:
            await member.vote(again.id)
        await found.step()
        assert (await job_now(found.core, again.id)).status == "gathering"
        await stopping.stop(found.core, again.id, "enough")
        for member in found.members:
            member.held.clear()
            await member.beat(free=ONE_CORE)
    assert [job for job, _ in found.scheduler._gate._lingering] == [again.id]
