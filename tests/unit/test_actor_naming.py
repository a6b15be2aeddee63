"""Names, endpoints and keys through the store, with requests that race, fail and land late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fray.rpc import actor_server
from fray_coordinator.actors import naming, rpc_secrets
from fray_coordinator.core import Core
from fray_coordinator.errors import NameTaken, StaleAttempt
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import EndpointKey, JobIds, NameKeys
from fray_layouts.records import EndpointRecord, JobRecord
from tests.support.scripted_agents import join, launch, passes
from tests.support.virtual import Cluster


def endpoint(job: str = "", attempt: int = 1, incarnation: int = 1, **fields: Any) -> EndpointRecord:
    usual = EndpointRecord(namespace="ns", name="a", actor_id="a", nonce=f"n{attempt}", address="host:1")
    return replace(usual, job=job, attempt=attempt, incarnation=incarnation, **fields)


async def actor(core: Core, **spec: Any) -> JobRecord:
    """A pending job that holds an actor's name."""
    wanted: dict[str, Any] = {"name": "actor", "actor": True, "max_retries_failure": 9, **spec}
    return await launch(core, **wanted)


# --- names -------------------------------------------------------------------------------------------------------


async def test_a_name_goes_to_one_of_many_who_take_it_at_once_and_the_others_find_it(cluster: Cluster) -> None:
    cores = [await cluster.core() for _ in range(8)]
    jobs = [await actor(core) for core in cores]
    takings = [naming.take_name(c, "ns", "actor", "a", j.id, exist_ok=True) for c, j in zip(cores, jobs, strict=True)]
    found = await asyncio.gather(*takings)
    assert len({(name.job, name.incarnation) for name in found}) == 1
    assert found[0].incarnation == 1


async def test_a_name_that_somebody_has_is_refused_and_named(cluster: Cluster) -> None:
    core = await cluster.core()
    first, second = await actor(core), await actor(core)
    await naming.take_name(core, "ns", "actor", "a", first.id)
    assert (await naming.take_name(core, "ns", "actor", "a", first.id)).incarnation == 1, "the same call again"
    with pytest.raises(NameTaken, match=first.id):
        await naming.take_name(core, "ns", "actor", "a", second.id)
    await naming.take_name(core, "other", "actor", "a", second.id)


async def test_a_server_publishes_an_incarnation_only_if_its_job_holds_the_name(cluster: Cluster) -> None:
    core = await cluster.core()
    holder, other = await actor(core), await actor(core)
    await naming.take_name(core, "ns", "actor", "a", holder.id)
    with pytest.raises(StaleAttempt):
        await actor_server._publish([endpoint(other.id)], core)
    await actor_server._publish([endpoint(holder.id), endpoint(other.id, incarnation=0, name="member")], core)
    assert [found.job for found in await naming.lookup(core, "ns", "a")] == [holder.id]


async def test_the_name_of_a_job_that_ended_is_free_and_its_incarnation_grows(cluster: Cluster) -> None:
    core = await cluster.core()
    first, second = await actor(core), await actor(core)
    await naming.take_name(core, "ns", "actor", "a", first.id)
    await stop(core, first.id, "enough")
    assert await naming.read_held(core, "ns", "actor", "a") is None
    taken = await naming.take_name(core, "ns", "actor", "a", second.id)
    assert (taken.job, taken.incarnation) == (second.id, 2)
    assert await naming.read_held(core, "ns", "actor", "a") == taken


async def test_a_name_whose_creator_died_is_free_after_a_minute_and_nobody_is_sent_to_it_before(
    cluster: Cluster,
) -> None:
    core = await cluster.core()
    await naming.take_name(core, "ns", "actor", "a", JobIds.fresh("actor", core.now(), "zzzzzz"))
    mine, began = await actor(core), core.now()
    taken = await naming.take_name(core, "ns", "actor", "a", mine.id, exist_ok=True)
    assert (taken.job, taken.incarnation) == (mine.id, 2)
    assert core.now() - began == pytest.approx(60, abs=3)


async def test_a_name_is_found_as_soon_as_its_job_has_come(cluster: Cluster) -> None:
    core, other = await cluster.core(), await cluster.core()
    job_id = JobIds.fresh("actor", core.now(), core.rng.token())
    await naming.take_name(core, "ns", "actor", "a", job_id)
    search = asyncio.create_task(naming.take_name(other, "ns", "actor", "a", "actor-mine", exist_ok=True))
    await asyncio.sleep(5)
    assert not search.done()
    spec = (await actor(other)).spec
    (done,) = await submit(core, [spec], ids=[job_id])
    assert done.job.id == job_id
    assert (await search).job == job_id


async def test_a_name_without_a_job_is_held_until_it_is_freed(cluster: Cluster) -> None:
    core = await cluster.core()
    first = await naming.take_name(core, "ns", "queue", "q", "", exist_ok=True)
    await asyncio.sleep(1e6)
    assert await naming.take_name(core, "ns", "queue", "q", "", exist_ok=True) == first
    await naming.free_name(core, "ns", "queue", "q", first.incarnation)
    again = await naming.take_name(core, "ns", "queue", "q", "")
    assert again.incarnation == 2
    await naming.free_name(core, "ns", "queue", "q", first.incarnation)
    assert await naming.read_held(core, "ns", "queue", "q") == again


# --- endpoints ---------------------------------------------------------------------------------------------------


async def named(cluster: Cluster) -> tuple[Core, JobRecord]:
    core = await cluster.core()
    job = await actor(core)
    await naming.take_name(core, "ns", "actor", "a", job.id)
    return core, job


async def test_a_later_attempt_replaces_the_endpoint_and_an_earlier_one_that_wakes_is_told_to_end(
    cluster: Cluster,
) -> None:
    core, job = await named(cluster)
    await naming.publish(core, endpoint(job.id, 1), singleton=True)
    await naming.publish(core, endpoint(job.id, 2), singleton=True)
    with pytest.raises(StaleAttempt):
        await naming.publish(core, endpoint(job.id, 1), singleton=True)
    (found,) = await naming.lookup(core, "ns", "a")
    assert (found.attempt, found.nonce) == (2, "n2")


@pytest.mark.parametrize("stops_before", [("put", "names/"), ("put", "actors/")])
async def test_one_that_froze_between_its_reads_and_its_writes_does_not_publish_over_a_later_one(
    cluster: Cluster, stops_before: tuple[str, str]
) -> None:
    core, job = await named(cluster)
    frozen = await cluster.core()

    async def meanwhile() -> None:
        await naming.publish(core, endpoint(job.id, 2), singleton=True)

    cluster.connections[-1].before[stops_before] = meanwhile
    with pytest.raises(StaleAttempt):
        await naming.publish(frozen, endpoint(job.id, 1), singleton=True)
    (found,) = await naming.lookup(core, "ns", "a")
    assert found.attempt == 2


async def test_the_old_incarnation_is_told_to_end_and_the_new_one_is_found_alone(cluster: Cluster) -> None:
    core, job = await named(cluster)
    await naming.publish(core, endpoint(job.id, 1), singleton=True)
    await stop(core, job.id, "enough")
    after = await actor(core)
    name = await naming.take_name(core, "ns", "actor", "a", after.id)
    later = endpoint(after.id, 1, name.incarnation, actor_id="b")
    await naming.publish(core, later, singleton=True)
    with pytest.raises(StaleAttempt):
        await naming.publish(core, endpoint(job.id, 2), singleton=True)
    assert [found.actor_id for found in await naming.lookup(core, "ns", "a")] == ["b"]


async def test_one_without_the_name_does_not_publish(cluster: Cluster) -> None:
    core = await cluster.core()
    with pytest.raises(StaleAttempt):
        await naming.publish(core, endpoint("j-1"), singleton=True)
    assert await naming.lookup(core, "ns", "a") == []


async def test_members_of_a_pool_publish_independently_and_lookups_read_only_changes(cluster: Cluster) -> None:
    core = await cluster.core()
    members = [endpoint(f"j-{n}", actor_id=f"m{n}") for n in range(50)]
    await asyncio.gather(*(naming.publish(core, member, singleton=False) for member in members))
    view = naming.EndpointLookup(core, "ns", "a")
    assert len(await view.poll()) == 50
    asked = cluster.connections[0].asked
    asked.clear()
    await naming.publish(core, replace(members[7], attempt=2), singleton=False)
    asked.clear()
    assert sorted(found.attempt for found in await view.poll())[-2:] == [1, 2]
    assert [verb for verb, _ in asked] == ["list", "get"]
    await naming.withdraw(core, members[3])
    assert len(await view.poll()) == 49


async def test_a_member_that_wakes_does_not_publish_over_its_later_attempt(cluster: Cluster) -> None:
    core = await cluster.core()
    await naming.publish(core, endpoint("j-1", 2), singleton=False)
    with pytest.raises(StaleAttempt):
        await naming.publish(core, endpoint("j-1", 1), singleton=False)


async def test_a_server_withdraws_only_its_own_endpoints(cluster: Cluster) -> None:
    core = await cluster.core()
    old, new = endpoint("j-1", 1), endpoint("j-1", 2)
    await naming.publish(core, old, singleton=False)
    await naming.publish(core, new, singleton=False)
    await naming.withdraw(core, old)
    assert [found.attempt for found in await naming.lookup(core, "ns", "a")] == [2]
    await naming.withdraw(core, new)
    assert await naming.lookup(core, "ns", "a") == []


async def test_an_agent_removes_only_its_tasks_endpoints(cluster: Cluster) -> None:
    core = await cluster.core()
    job = replace(await actor(core), attempt=2)
    later = endpoint(job.id, 3, actor_id="later")
    other = endpoint("other-1", 1, actor_id="other")
    mine = endpoint(job.id, 2, actor_id="mine")
    for one in (later, other, mine):
        await naming.publish(core, one, singleton=False)
    named_keys = [EndpointKey("ns", "a", one.actor_id).key() for one in (later, other, mine)]
    await naming.withdraw_all(core, [*named_keys, f"jobs/{job.id}.json", "../x", ""], job)
    left = await naming.lookup(core, "ns", "a")
    assert [found.actor_id for found in left] == ["later", "other"]
    assert cluster.keys("jobs/") == [f"jobs/{job.id}.json"]


async def test_the_repair_removes_endpoints_of_jobs_that_do_not_run_again_and_again(cluster: Cluster) -> None:
    hand = await join(cluster, "agent")
    core = hand.core
    beating = asyncio.create_task(hand.beat_for_ever())
    alive = await actor(core, name="alive")
    await pending_index.delete_entry(core, entry_of((await hand.claim()).record))
    gone = await actor(core, name="gone")
    held = await hand.claim()
    for job in (alive, gone):
        await naming.publish(core, endpoint(job.id, 1, actor_id=job.id), singleton=False)
    coordinator = Reconciler(await cluster.core(), "p")
    await hand.end(held, kind="exited")
    settings = core.settings
    await passes(coordinator, 2 * settings.repair_interval)
    assert [found.job for found in await naming.lookup(core, "ns", "a")] == [alive.id]
    await naming.publish(core, endpoint(gone.id, 1, actor_id=gone.id), singleton=False)  # its write landed late
    await passes(coordinator, 2 * settings.repair_interval)
    assert [found.job for found in await naming.lookup(core, "ns", "a")] == [alive.id]
    beating.cancel()


async def test_the_repair_removes_an_endpoint_that_no_job_vouches_for(cluster: Cluster) -> None:
    core = await cluster.core()
    await naming.publish(core, endpoint(), singleton=False)
    await Reconciler(core, "p").repair.run({})
    assert await naming.lookup(core, "ns", "a") == []


async def test_all_endpoints_are_listed_and_a_broken_one_is_told(cluster: Cluster) -> None:
    core = await cluster.core()
    await naming.publish(core, endpoint("j-1"), singleton=False)
    await core.store.put("actors/ns/b/broken.json", b"{", ABSENT)
    problems: dict[str, str] = {}
    assert [found.job for found in await naming.all_endpoints(core, problems)] == ["j-1"]
    assert list(problems) == ["actors/ns/b/broken.json"]


async def test_the_name_says_which_attempt_serves(cluster: Cluster) -> None:
    core, job = await named(cluster)
    await naming.publish(core, endpoint(job.id, 4), singleton=True)
    assert cluster.keys("names/") == [NameKeys.key("ns", "actor", "a")]
    found = await naming.read_name(core, "ns", "actor", "a")
    assert found is not None
    assert (found.incarnation, found.attempt) == (1, 4)


# --- keys --------------------------------------------------------------------------------------------------------


async def test_all_concurrent_readers_of_the_keys_get_the_same(cluster: Cluster) -> None:
    cores = [await cluster.core() for _ in range(5)]
    found = await asyncio.gather(*(rpc_secrets.rpc_keys(core) for core in cores))
    assert all(one == found[0] for one in found)
    ((_, secret),) = found[0]
    assert len(secret) == 32
    await rpc_secrets.rotate_keys(cores[0])
    rotated = await rpc_secrets.rpc_keys(cores[1])
    assert rotated[1:] == found[0]
    assert rotated[0] not in found[0]
    await asyncio.sleep(rpc_secrets.RETIRED_KEY_SECONDS + 1)
    assert await rpc_secrets.rpc_keys(cores[1]) == rotated[:1], "though nobody rotates again"
