"""Gathering the members of gangs and starting them, with scripted agents on a store in memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import gang_commit, stopping
from fray_coordinator.jobs.doorbell import ring
from fray_coordinator.jobs.gang_exits import store_exit
from fray_coordinator.placements import scheduler
from fray_coordinator.protocol.placements.assignment import MAX_MOVES
from fray_coordinator.protocol.placements.votes import withdrawn
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import (
    AttemptExit,
    Doorbell,
    Holding,
    JobRecord,
    ReplicaExit,
    Resources,
    SliceMember,
    Suspect,
)
from tests.support.scripted_agents import job_now, launch
from tests.support.scripted_members import ONE_CORE, Gathering, Member, gang, gathering, members_of, vote_all
from tests.support.virtual import Cluster


async def test_a_gang_is_assigned_then_started_when_all_have_voted(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    job = await gang(found)
    assert (job.status, cluster.keys("pending/")) == ("gathering", [])
    await found.step()
    assigned = await job_now(found.core, job.id)
    assert (assigned.status, members_of(assigned)) == ("gathering", {"a": [0], "b": [1]})
    assert [await member.plan() for member in found.members] == [[JobKeys.key(job.id)], [JobKeys.key(job.id)], []]
    assert found.poked == ["a.example:1", "b.example:1"]
    await found.members[0].vote(job.id, ports={"coordinator": 7777})
    await found.step()
    assert (await job_now(found.core, job.id)).status == "gathering", "one vote is missing"
    await found.members[1].vote(job.id)
    await found.step(look=False)
    started = await job_now(found.core, job.id)
    assert (started.status, started.attempt, started.lease) == ("running", 1, None)
    assert started.started_at is not None
    assert started.placement is not None
    assert [dict(member.ports) for member in started.placement.members] == [{"coordinator": 7777}, {}]
    assert started.placement.round == 1


async def test_the_doorbell_says_which_one_it_replaced(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    await ring(found.core, "default")
    before = await found.core.records.read(PoolKeys.doorbell("default"), Doorbell)
    assert before is not None
    await gang(found)
    await found.step()
    after = await found.core.records.read(PoolKeys.doorbell("default"), Doorbell)
    assert after is not None
    assert after.record.replaces == before.version


async def test_nothing_is_asked_of_the_store_but_the_bell_while_nobody_waits(cluster: Cluster) -> None:
    found = await gathering(cluster, "a")
    await found.step()
    way = cluster.ways[-1]
    way.asked.clear()
    await found.step(look=False)
    assert way.asked == [("get_if_changed", "placements/bell")]


@pytest.mark.parametrize("how", ["silent", "other round", "other attempt", "other bundles", "claiming", "dead"])
async def test_only_votes_of_the_round_by_agents_that_live_count(cluster: Cluster, how: str) -> None:
    found = await gathering(cluster, "a", "b")
    job = await gang(found)
    await found.step()
    await vote_all(found, job.id)
    odd = found.members[1]
    vote = odd.held[job.id]
    changes = {
        "other round": replace(vote, round=vote.round - 1),
        "other attempt": replace(vote, attempt=2),
        "other bundles": replace(vote, bundles=[0]),
        "claiming": replace(vote, phase="claiming"),
    }
    odd.held[job.id] = changes.get(how, vote)
    if how == "silent":
        found.suspects["b"] = Suspect(beat=odd.record.beat + 1, age=5.0)
    await odd.beat(**({"state": "dead"} if how == "dead" else {}))
    await found.step(look=False)
    assert (await job_now(found.core, job.id)).status == "gathering"


async def test_hints_of_a_large_gang_that_waits_for_others_lead_to_few_reads_and_none_is_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "HINTED_READS_A_SECOND", 1.0)
    found = await gathering(cluster, "a", "b", free=Resources())
    job = await gang(found)
    await found.step()
    assert set(members_of(await job_now(found.core, job.id))) == {"a", "b"}
    way = cluster.ways[-1]
    way.asked.clear()
    for _ in range(10):
        await found.step(look=False, woken=True)
        await cluster.clock.sleep(0.1)
    asked = Counter(key for verb, key in way.asked if verb == "get_if_changed" and key.startswith("agents/"))
    assert asked == {"agents/a.json": 1, "agents/b.json": 1}
    await vote_all(found, job.id)
    await found.step(look=False, woken=True)
    assert (await job_now(found.core, job.id)).status == "gathering", "they were read a second ago"
    await cluster.clock.sleep(2.0)
    await found.step(look=False)
    assert (await job_now(found.core, job.id)).status == "running"


async def test_a_round_that_moves_between_the_votes_and_the_start_is_not_started(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    job = await gang(found)
    await found.step()
    await vote_all(found, job.id)

    async def leave() -> None:
        def without_me(now: JobRecord) -> JobRecord:
            assert now.placement is not None
            return replace(now, placement=withdrawn(now.placement))

        await found.members[0].core.records.change(JobKeys.key(job.id), JobRecord, without_me)

    cluster.ways[-1].before["put", JobKeys.key(job.id)] = leave
    await found.step()
    now = await job_now(found.core, job.id)
    assert now.placement is not None
    assert (now.status, now.placement.round) == ("gathering", 3), "the one that left made 2, and it was assigned anew"


async def test_a_member_that_refuses_is_exchanged_for_this_attempt(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    job = await gang(found)
    await found.step()
    await found.members[0].vote(job.id, phase="refused")
    await found.step()
    now = await job_now(found.core, job.id)
    assert now.placement is not None
    assert (set(members_of(now)), now.placement.refused, now.placement.moves) == ({"b", "c"}, ["a"], 0)


async def test_a_member_that_shows_room_and_does_not_vote_is_exchanged_in_time(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    job = await gang(found)
    await found.step()
    await found.members[1].vote(job.id)
    await found.step()
    await cluster.clock.sleep(2 * found.core.settings.repair_interval)
    await found.step()
    now = await job_now(found.core, job.id)
    assert now.placement is not None
    assert (set(members_of(now)), now.placement.refused) == ({"b", "c"}, ["a"])


async def test_a_member_whose_room_another_gang_still_has_is_waited_for(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    later = await gang(found)
    await found.step()
    await found.members[0].vote(later.id)
    await found.members[0].beat(free=Resources())
    earlier = await gang(found, priority=5)
    await found.step()
    await found.members[1].vote(earlier.id)
    await found.step()
    await cluster.clock.sleep(2 * found.core.settings.repair_interval)
    await found.step()
    now = await job_now(found.core, earlier.id)
    assert now.placement is not None
    assert (set(members_of(now)), now.placement.refused) == ({"a", "b"}, [])


async def test_members_that_die_are_exchanged(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    job = await gang(found)
    await found.step()
    await found.members[0].beat(state="dead")
    await found.step()
    assert set(members_of(await job_now(found.core, job.id))) == {"b", "c"}


async def test_what_is_free_now_is_preferred_a_few_times(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    first, second = found.members
    job = await gang(found, 1 + 1)
    await found.step()
    extra = (await gathering(cluster, *(f"x{n}" for n in range(2 * MAX_MOVES)), free=Resources())).members
    for spare in extra:
        spare.held = {"single": Holding(attempt=1)}
        await spare.beat()
    found.members += extra
    occupied: Member = second
    for spare in extra[: MAX_MOVES + 1]:
        occupied.held = {"single": Holding(attempt=1)}
        await occupied.beat(free=Resources())
        spare.held = {}
        await spare.beat(free=ONE_CORE)
        await found.step()
        occupied = spare
    now = await job_now(found.core, job.id)
    assert now.placement is not None
    assert now.placement.moves == MAX_MOVES
    assert first.id in members_of(now)


async def test_until_is_fixed_when_the_attempt_is_first_assigned(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    for member, until in zip(found.members, (50.0, 90.0), strict=True):
        member.held = {"single": Holding(attempt=1, ends_by=found.core.now() + until)}
        await member.beat(free=Resources())
    job = await gang(found)
    await found.step()
    now = await job_now(found.core, job.id)
    assert now.placement is not None
    assert now.placement.until == pytest.approx(found.core.now() + 90.0, abs=1.0)


async def test_until_stays_when_members_change(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    ends = [found.core.now() + later for later in (50.0, 90.0, 400.0)]
    for member, end in zip(found.members, ends, strict=True):
        member.held = {"single": Holding(attempt=1, ends_by=end)}
        await member.beat(free=Resources())
    job = await gang(found)
    await found.step()
    await found.members[0].beat(drain=True)
    await found.step()
    now = await job_now(found.core, job.id)
    assert now.placement is not None
    assert set(members_of(now)) == {"b", "c"}
    assert now.placement.until == pytest.approx(ends[1], abs=1.0), (
        "a window that moved with the members would never end"
    )


async def test_two_gangs_are_given_hosts_in_their_order_and_none_holds_a_part(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    second = await gang(found, priority=0)
    await found.step()
    assert set(members_of(await job_now(found.core, second.id))) == {"a", "b"}
    first = await gang(found, priority=5)
    await found.step()
    assert len(members_of(await job_now(found.core, first.id))) == 2
    assert members_of(await job_now(found.core, second.id)) == {}


async def test_a_gang_that_needs_more_than_there_is_waits_and_holds_nothing(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    large, small = await gang(found, 3), await gang(found, 2)
    await found.step()
    assert (await job_now(found.core, large.id)).placement is None
    assert set(members_of(await job_now(found.core, small.id))) == {"a", "b"}


async def test_agents_that_do_not_know_placements_are_not_chosen(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    await found.members[0].beat(places=False)
    job = await gang(found)
    await found.step()
    assert (await job_now(found.core, job.id)).placement is None


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


async def lost(found: Gathering, stored: Stored[JobRecord], agent: str) -> JobRecord:
    ended = await gang_commit.end_without(found.core, stored, agent)
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


async def test_who_runs_the_pass_knows_when_a_gang_may_be_given_members_again(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    again = await lost(found, await started(found), "b")
    assert found.scheduler.due_in() == float("inf"), "the record was not read yet"
    await found.step()
    assert members_of(await job_now(found.core, again.id)) == {}
    assert found.scheduler.due_in() == pytest.approx(again.not_before - found.core.now())
    await cluster.clock.sleep(found.scheduler.due_in())
    await found.step(look=False)
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
    await found.step(look=False)
    assert (await job_now(found.core, again.id)).status == "running"


async def test_the_next_attempt_waits_for_agents_that_list_the_last_one(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    stored = await started(found)
    job = stored.record
    again = await lost(found, stored, "b")
    assert (again.status, again.attempt) == ("gathering", 2)
    await cluster.clock.sleep(again.not_before - found.core.now())
    hangs = found.members[0]
    await hangs.beat(free=Resources())  # it has not read yet that its replica's attempt ended
    await found.members[1].beat(state="dead")
    await found.step()
    assert set(members_of(await job_now(found.core, job.id))) == {"a", "c"}
    await found.members[2].vote(job.id)
    await found.step()
    assert (await job_now(found.core, job.id)).status == "gathering"
    await hangs.vote(job.id)  # now that nothing is left of the last one
    await found.step(look=False)
    assert (await job_now(found.core, job.id)).status == "running"


async def test_the_next_attempt_is_where_the_last_one_was_though_that_is_not_gone_yet(cluster: Cluster) -> None:
    found = await gathering(cluster, "m", "n")
    stored = await started(found, max_retries_failure=1)
    ended = await gang_commit.end_member(found.core, stored, "n", [await failure(found.core, stored.record, "n")])
    found.members += (await gathering(cluster, "a", "b")).members
    await cluster.clock.sleep(ended.record.not_before - found.core.now())
    for member in found.members[:2]:
        await member.beat(free=Resources())
    await found.step()
    assert set(members_of(await job_now(found.core, ended.record.id))) == {"m", "n"}


async def failure(core: Core, job: JobRecord, agent: str) -> ReplicaExit:
    """The exit of the agent's replica, which has failed; it is stored."""
    left = ReplicaExit(agent=agent, host=agent, exit=AttemptExit(kind="exited"), ended_at=core.now())
    return await store_exit(core, job, members_of(job)[agent][0], left)


async def test_the_members_of_a_gang_whose_attempt_was_ended_or_is_to_stop_look_at_once(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    stored = await started(found)
    found.poked.clear()
    await found.step()
    assert found.poked == []
    await stopping.stop(found.core, stored.record.id, "enough")
    await found.step()
    assert sorted(found.poked) == ["a.example:1", "b.example:1"]
    found.poked.clear()
    await found.step()
    assert found.poked == []
    await lost(found, stored, "b")
    await found.step()
    assert sorted(found.poked) == ["a.example:1", "b.example:1"]


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
    parent = await launch(found.core, name="parent")
    await set_status(found, parent.id, "running")
    job = await gang(found, parent=parent.id)
    await found.step()
    await vote_all(found, job.id)
    await set_status(found, parent.id, "failed")
    await found.step()
    assert (await job_now(found.core, job.id)).status == "stopped"


async def test_a_gang_whose_parent_is_to_adopt_it_waits(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    parent = await launch(found.core, name="parent")
    await set_status(found, parent.id, "running")
    job = await gang(found, parent=parent.id, id="own")
    await found.step()
    await vote_all(found, job.id)
    await set_status(found, parent.id, "pending")
    await found.step()
    assert (await job_now(found.core, job.id)).status == "gathering"
    await set_status(found, parent.id, "running")
    await found.step()
    assert (await job_now(found.core, job.id)).status == "running"


async def test_a_gang_that_is_stopped_while_it_gathers_is_left_alone(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    job = await gang(found)
    await found.step()
    await stopping.stop(found.core, job.id, "enough")
    await vote_all(found, job.id)
    await found.step()
    now = await job_now(found.core, job.id)
    assert (now.status, cluster.keys("placements/default/")) == ("stopped", [])


async def test_a_slice_is_given_whole(cluster: Cluster) -> None:
    chips = replace(ONE_CORE, device="tpu-v5litepod-16", device_count=4)
    found = await gathering(cluster, "a", "b", "c", capacity=chips, free=chips)
    for index, member in enumerate(found.members[:2]):
        await member.beat(slice=SliceMember(id="s", type="v5litepod-16", index=1 - index, hosts=2))
    device = {"kind": "tpu", "variant": "v5litepod-16", "count": 4}
    job = await gang(found, slices=1, resources={"device": device})
    await found.step()
    assert members_of(await job_now(found.core, job.id)) == {"b": [0], "a": [1]}


async def test_a_job_for_one_of_several_devices_is_placed_where_the_first_of_them_is_free(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    for member, device in zip(found.members, ("gpu-a100", "gpu-h100"), strict=True):
        room = replace(ONE_CORE, device=device, device_count=1)
        await member.beat(capacity=room, free=room)
    wants = {"device": {"kind": "gpu", "variant": "h100"}, "device_alternatives": ["a100"]}
    first, second = [await launch(found.core, name="one", resources=wants) for _ in range(2)]
    assert (first.status, cluster.keys("pending/")) == ("gathering", [])
    await found.step()
    assert members_of(await job_now(found.core, first.id)) == {"b": [0]}
    assert members_of(await job_now(found.core, second.id)) == {"a": [0]}
    await vote_all(found, first.id)
    await found.step()
    assert (await job_now(found.core, first.id)).status == "running"
