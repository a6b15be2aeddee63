"""Gathering the members of gangs and starting them, with scripted agents on a store in memory."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from fray_coordinator.jobs.notifications import ring
from fray_coordinator.placements import scheduler
from fray_coordinator.protocol.placements.assignment import MAX_MOVES
from fray_coordinator.protocol.placements.votes import withdrawn
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import JobKeys, PoolKeys
from fray_layouts.records import (
    Doorbell,
    Holding,
    JobRecord,
    Resources,
    SliceMember,
    Suspect,
)
from tests.support.scripted_agents import job_now, launch
from tests.support.scripted_members import ONE_CORE, Member, gang, gathering, members_of, vote_all
from tests.support.virtual import Cluster


async def test_a_gang_is_assigned_then_started_when_all_have_voted(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b", "c")
    job = await gang(found)
    assert (job.status, cluster.keys("pending/")) == ("gathering", [])
    await found.step()
    assigned = await job_now(found.core, job.id)
    assert (assigned.status, members_of(assigned)) == ("gathering", {"a": [0], "b": [1]})
    assert [await member.plan() for member in found.members] == [[JobKeys.key(job.id)], [JobKeys.key(job.id)], []]
    assert found.hinted == ["a.example:1", "b.example:1"]
    await found.members[0].vote(job.id, ports={"coordinator": 7777})
    await found.step()
    assert (await job_now(found.core, job.id)).status == "gathering", "one vote is missing"
    await found.members[1].vote(job.id)
    found.hinted.clear()
    await found.step(reads_agents=False)
    started = await job_now(found.core, job.id)
    assert (started.status, started.attempt, started.lease) == ("running", 1, None)
    assert found.hinted == ["a.example:1", "b.example:1"], "so that they start their replicas at once"
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
    connection = cluster.connections[-1]
    connection.asked.clear()
    await found.step(reads_agents=False)
    assert connection.asked == [("get_if_changed", "placements/bell")]


async def test_a_gang_whose_ring_was_lost_is_found_after_a_repair_interval(cluster: Cluster) -> None:
    found = await gathering(cluster, "a", "b")
    await found.step()
    job = await gang(found)
    await found.core.store.delete(PlacementKey.bell)
    await found.step()
    assert not await found.members[0].plan()
    await cluster.clock.sleep(found.core.settings.repair_interval)
    await found.step()
    assert members_of(await job_now(found.core, job.id)) == {"a": [0], "b": [1]}


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
    await found.step(reads_agents=False)
    assert (await job_now(found.core, job.id)).status == "gathering"


async def test_hints_of_a_large_gang_that_waits_for_others_lead_to_few_reads_and_none_is_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "HINTED_READS_A_SECOND", 1.0)
    found = await gathering(cluster, "a", "b", free=Resources())
    job = await gang(found)
    await found.step()
    assert set(members_of(await job_now(found.core, job.id))) == {"a", "b"}
    connection = cluster.connections[-1]
    connection.asked.clear()
    for _ in range(10):
        await found.step(reads_agents=False, woken=True)
        await cluster.clock.sleep(0.1)
    asked = Counter(key for verb, key in connection.asked if verb == "get_if_changed" and key.startswith("agents/"))
    assert asked == {"agents/a.json": 1, "agents/b.json": 1}
    await vote_all(found, job.id)
    await found.step(reads_agents=False, woken=True)
    assert (await job_now(found.core, job.id)).status == "gathering", "they were read a second ago"
    await cluster.clock.sleep(2.0)
    await found.step(reads_agents=False)
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

    cluster.connections[-1].before["put", JobKeys.key(job.id)] = leave
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


async def test_a_member_that_dies_after_a_hint_is_exchanged_though_the_gang_waits_for_room(cluster: Cluster) -> None:
    """It was read after the hint, and the pass knows it no more."""
    found = await gathering(cluster, "a", "b", "c", free=Resources())
    job = await gang(found)
    await found.step()
    await found.step(woken=True)
    assert set(members_of(await job_now(found.core, job.id))) == {"a", "b"}
    await found.members[0].beat(state="dead")
    await found.step()
    assert set(members_of(await job_now(found.core, job.id))) == {"b", "c"}


async def test_hosts_that_are_free_now_are_preferred_a_few_times(cluster: Cluster) -> None:
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
    await found.members[0].beat(supports_placements=False)
    job = await gang(found)
    await found.step()
    assert (await job_now(found.core, job.id)).placement is None


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
