"""Reservations and groups as services: they are made, renewed, ended with all jobs in them, and repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.errors import ReservationNotFound
from fray_coordinator.jobs.lookup import live_agents, read_agents
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.why_waiting import reservations_around, why_in_reservation, why_waiting
from fray_coordinator.placements import launching, reservations
from fray_coordinator.placements.launching import GroupWish, ReservationRouter, outside_of_ended
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds, JobKeys, ReservationKeys
from fray_layouts.records import Holding, JobRecord, Placement, PlacementMember, ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec
from tests.support.scripted_agents import ScriptedAgent, job_now, join, passes
from tests.support.unforeseen import raising_for
from tests.support.virtual import Cluster

GIVEN_UP = 600.0 + 3600.0
"""Seconds after which nobody waits for the submitter of a group any more."""


def spec(name: str = "job", **fields: Any) -> JobSpec:
    return parse_spec({"name": name, "entrypoint": {"command": ["true"]}, "namespace": "team", **fields})


async def reserve(core: Core, count: int = 2, **fields: Any) -> ReservationRecord:
    usual: dict[str, Any] = {"namespace": "team", "ttl": 100.0, "expires_at": core.now() + 100.0, "low": 1}
    record = ReservationRecord(
        id=JobIds.fresh("reservation", core.now(), core.rng.token()),
        kind="reservation",
        submitted_at=core.now(),
        parts=[ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=1.0), count=count))],
        **(usual | fields),
    )
    return await reservations.create(core, record)


async def routed(core: Core, *specs: JobSpec) -> list[JobRecord]:
    """The specs after routing, submitted in the namespace."""
    return [one.job for one in await submit(core, await ReservationRouter().route(core, specs))]


async def launched(core: Core, specs: Sequence[JobSpec], **wish: Any) -> list[JobRecord]:
    return [one.job for one in await launching.launch(core, specs, GroupWish("group", **wish))]


async def repaired(cluster: Cluster) -> None:
    """One repair by a new participant."""
    newcomer = Reconciler(await cluster.core(), "newcomer")
    await newcomer.try_pass()
    await newcomer.repair.run({})


def groups(cluster: Cluster) -> list[str]:
    return list(cluster.keys("reservations/"))


async def record_now(core: Core, reservation: str) -> ReservationRecord:
    return (await reservations.read(core, reservation)).record


async def test_jobs_that_are_routed_at_once_all_go_into_the_reservation(core: Core) -> None:
    """Files in the inbox come so: the others wait for the result of the first one's lookup."""
    record, router = await reserve(core, count=4), ReservationRouter()
    found = await asyncio.gather(*(router.route(core, [spec()]) for _ in range(4)))
    assert {one.pool for routed in found for one in routed} == {ReservationKeys.pool(record.id)}


async def test_a_job_of_the_namespace_goes_into_its_reservation_by_itself(core: Core) -> None:
    (before,) = await routed(core, spec())
    record = await reserve(core)
    inside, too_large, other = await routed(core, spec(), spec(resources={"cpu": 8}), spec(namespace="other"))
    assert before.spec.pool == "default"
    assert inside.spec.pool == f"~{record.id}"
    assert too_large.spec.pool == other.spec.pool == "default"


async def test_the_reservation_with_the_higher_priority_is_filled_first(core: Core) -> None:
    await reserve(core)
    urgent = await reserve(core, priority=5)
    (inside,) = await routed(core, spec())
    assert inside.spec.pool == f"~{urgent.id}"


async def test_a_job_that_names_a_reservation_is_let_in_by_its_namespace_while_it_lasts(core: Core) -> None:
    record = await reserve(core)
    pool = f"~{record.id}"
    (inside,) = await routed(core, spec(pool=pool, resources={"cpu": 8}))
    assert inside.spec.pool == pool
    with pytest.raises(InvalidInput, match="it is for namespace team, not for other"):
        await routed(core, spec(pool=pool, namespace="other"))
    await reservations.release(core, record.id, "released")
    with pytest.raises(InvalidInput, match="it has ended: released"):
        await routed(core, spec(pool=pool))
    with pytest.raises(ReservationNotFound, match="nobody"):
        await routed(core, spec(pool="~nobody"))


async def test_invalid_ids_of_reservations_are_refused(core: Core) -> None:
    with pytest.raises(InvalidInput, match=r"reservation_id: '\.\./secrets' .*fray reservations"):
        await reservations.release(core, "../secrets", "released")


async def test_a_reservation_lasts_as_long_as_it_is_renewed(cluster: Cluster) -> None:
    core = await cluster.core()
    record = await reserve(core)
    await asyncio.sleep(60.0)
    await reservations.renew(core, record.id)
    await asyncio.sleep(60.0)
    await repaired(cluster)
    assert (await record_now(core, record.id)).state == "forming"
    await asyncio.sleep(41.0)
    await repaired(cluster)
    over = await record_now(core, record.id)
    assert (over.state, over.reason) == ("ended", "it was not renewed in time")
    with pytest.raises(InvalidInput, match="it has ended: it was not renewed in time"):
        await reservations.renew(core, record.id)


async def test_a_reservation_that_is_renewed_while_it_is_being_ended_goes_on_and_a_release_ends_it_anyway(
    cluster: Cluster,
) -> None:
    """The record had run out when it was read, and is renewed before the end is written."""
    core, user = await cluster.core(), await cluster.core()
    reconciler = Reconciler(await cluster.core(), "agent")
    record = await reserve(core)
    (inside,) = await routed(core, spec())
    await asyncio.sleep(101.0)

    async def renew() -> None:
        await reservations.renew(user, record.id)

    cluster.connections[2].before["put", "reservations/"] = renew
    await reconciler.run_once()
    renewed = await record_now(core, record.id)
    assert renewed.state == "forming"
    assert (renewed.expires_at or 0.0) > core.now() + 90.0
    assert (await job_now(core, inside.id)).stop is None
    cluster.connections[0].before["put", "reservations/"] = renew
    assert (await reservations.release(core, record.id, "released")).reason == "released"


async def test_a_reservation_without_a_ttl_needs_no_renewal_until_it_has_ended(core: Core) -> None:
    record = await reserve(core, ttl=None, expires_at=None)
    with pytest.raises(InvalidInput, match="without a ttl, so it never expires and needs no renewal; release it"):
        await reservations.renew(core, record.id)
    await reservations.release(core, record.id, "released")
    with pytest.raises(InvalidInput, match="it has ended: released; make another one"):
        await reservations.renew(core, record.id)


async def test_ending_a_reservation_stops_its_waiting_jobs_and_leaves_no_index_entry(
    cluster: Cluster, core: Core
) -> None:
    record = await reserve(core)
    inside, outside = await routed(core, spec(), spec(resources={"cpu": 8}))
    await reservations.release(core, record.id, "released")
    stopped = await job_now(core, inside.id)
    assert stopped.status == "stopped"
    assert stopped.exit is not None
    assert f"its reservation {record.id} has ended: released" in stopped.exit.message
    assert (await job_now(core, outside.id)).status == "pending"
    assert [key for key in cluster.keys("placements/") if "bell" not in key] == []
    assert cluster.keys(f"pools/~{record.id}/") == []


async def test_the_repair_stops_late_jobs_and_adds_missing_entries(cluster: Cluster, core: Core) -> None:
    record, other = await reserve(core), await reserve(core, namespace="others")
    await reservations.release(core, record.id, "released")
    (late,) = (one.job for one in await submit(core, [spec(pool=f"~{record.id}")]))
    (entry,) = (key for key in cluster.keys("placements/") if other.id in key)
    await core.store.delete(entry)
    await repaired(cluster)
    assert (await job_now(core, late.id)).status == "stopped"
    assert entry in cluster.keys("placements/")


async def test_a_group_s_record_comes_last_and_names_all_of_its_jobs(cluster: Cluster) -> None:
    core = await cluster.core()
    jobs = await launched(core, [spec("a"), spec("b", resources={"cpu": 2})])
    (key,) = groups(cluster)
    record = await record_now(core, ReservationKeys.parse(key) or "")
    assert [part.job for part in record.parts] == [job.id for job in jobs]
    assert {job.spec.pool for job in jobs} == {f"~{record.id}"}
    assert (record.state, record.low) == ("forming", 2)
    written = [key.partition("/")[0] for verb, key in cluster.connections[-1].asked if verb == "put"]
    order = [area for area in written if area in ("placements", "jobs", "reservations")]
    assert order == ["placements", "jobs", "jobs", "reservations", "placements"]


async def test_a_group_whose_submitter_died_is_given_up_before_its_jobs_are_stopped(cluster: Cluster) -> None:
    core, dying = await cluster.core(), await cluster.core()
    cluster.connections[-1].before["put", "reservations/"] = asyncio.Event().wait
    submitting = asyncio.create_task(launched(dying, [spec("a"), spec("b")]))
    await asyncio.sleep(GIVEN_UP - 10.0)
    submitting.cancel()
    await repaired(cluster)
    assert groups(cluster) == [], "its submitter may still be about to create it"
    await asyncio.sleep(20.0)
    await repaired(cluster)
    (key,) = groups(cluster)
    assert (await record_now(core, ReservationKeys.parse(key) or "")).state == "ended"
    jobs = [await job_now(core, key.removeprefix("jobs/").removesuffix(".json")) for key in cluster.keys("jobs/")]
    assert [job.status for job in jobs] == ["stopped", "stopped"]


async def test_a_submitter_that_wakes_after_it_was_given_up_starts_nothing(cluster: Cluster) -> None:
    core, sleeper = await cluster.core(), await cluster.core()
    gate = asyncio.Event()
    cluster.connections[-1].before["put", "reservations/"] = gate.wait
    submitting = asyncio.create_task(launched(sleeper, [spec("a")]))
    await asyncio.sleep(GIVEN_UP + 10.0)
    await repaired(cluster)
    gate.set()
    (job,) = await submitting
    (key,) = groups(cluster)
    assert (await record_now(core, ReservationKeys.parse(key) or "")).state == "ended"
    assert (await job_now(core, job.id)).status == "stopped"


async def test_a_group_of_which_a_job_ends_before_it_is_held_is_void(cluster: Cluster, core: Core) -> None:
    first, second = await launched(core, [spec("a"), spec("b")])
    await reservations.stopping.stop(core, first.id, "not wanted")
    await repaired(cluster)
    (key,) = groups(cluster)
    assert f"job {first.id} ended before" in (await record_now(core, ReservationKeys.parse(key) or "")).reason
    assert (await job_now(core, second.id)).status == "stopped"


async def test_a_damaged_record_of_one_job_does_not_keep_a_void_group_alive(cluster: Cluster, core: Core) -> None:
    first, damaged = await launched(core, [spec("a"), spec("b")])
    await core.store.put(JobKeys.key(damaged.id), b"{", ANY)
    await reservations.stopping.stop(core, first.id, "not wanted")
    await repaired(cluster)
    (key,) = groups(cluster)
    assert (await record_now(core, ReservationKeys.parse(key) or "")).state == "ended"


async def test_a_group_inside_a_reservation_takes_its_bundles(core: Core) -> None:
    around = await reserve(core)
    (job,) = await launched(core, [spec()], reservation=around.id)
    group = await record_now(core, ReservationKeys.of_pool(job.spec.pool))
    assert group.pool == f"~{around.id}"
    with pytest.raises(InvalidInput, match="namespace team"):
        await launched(core, [spec(namespace="other")], reservation=around.id)
    with pytest.raises(InvalidInput, match="it is a launch group"):
        await launched(core, [spec()], reservation=group.id)


async def test_a_group_that_can_never_start_is_refused_and_nothing_is_written(cluster: Cluster, core: Core) -> None:
    await join(cluster, "a")
    with pytest.raises(InvalidInput, match=r"requests\[1\]"):
        await launched(core, [spec(), spec(resources={"cpu": 10_000})])
    with pytest.raises(InvalidInput, match="no live agent states its zone"):
        await launched(core, [spec()], same_zone=True)
    with pytest.raises(InvalidInput, match="at least one request"):
        await launched(core, [])
    assert cluster.keys("jobs/") == []
    assert cluster.keys("placements/") == []


async def test_an_ended_reservation_is_kept_for_people_as_long_as_a_job(cluster: Cluster, core: Core) -> None:
    record = await reserve(core)
    await reservations.release(core, record.id, "released")
    await repaired(cluster)
    assert groups(cluster) == [ReservationKeys.key(record.id)]
    await asyncio.sleep(core.settings.retention + 10.0)
    await repaired(cluster)
    assert groups(cluster) == []


async def test_a_job_that_waits_in_a_group_says_for_what(cluster: Cluster, core: Core) -> None:
    await join(cluster, "a")
    (job, _) = await launched(core, [spec("a"), spec("b", resources={"cpu": 6, "memory": "1GB"})])
    record = await record_now(core, ReservationKeys.of_pool(job.spec.pool))

    async def why(job: JobRecord) -> str:
        live = live_agents(await read_agents(core, {}), core.now())
        return why_waiting(job, live, core.now(), await reservations_around(core, [job]))

    assert f"its group {record.id} starts all of its jobs at once: each live agent" in await why(job)
    inside = replace(job, spec=replace(job.spec, pool="~nobody"))
    assert "does not exist yet" in await why(inside)
    await reservations.release(core, record.id, "released")
    assert "has ended (released)" in await why(job)


async def test_a_job_that_waits_in_a_held_reservation_says_how_much_that_has(cluster: Cluster, core: Core) -> None:
    record = await reserve(core, 3)
    (job,) = await routed(core, spec())
    member = PlacementMember(agent="a", host="here", bundles=[0])
    held = replace(record, state="held", placement=Placement(round=2, members=[member]))
    assert "in its 1 of at most 3 places" in why_in_reservation(job, held, [], core.now())
    group = replace(held, kind="group", parts=[ReservedPart(gang=GangSpec(count=2), job=job.id)])
    assert "1 of the 2 places of this job were lost" in why_in_reservation(job, group, [], core.now())
    whole = replace(group, parts=[ReservedPart(gang=GangSpec(), job=job.id)])
    assert "here should start it soon" in why_in_reservation(job, whole, [], core.now())


async def test_a_dropped_job_goes_into_its_namespace_s_reservation_and_into_no_other(
    cluster: Cluster, core: Core
) -> None:
    record = await reserve(core)
    drops = {"mine": spec("mine"), "theirs": spec("theirs", namespace="other", pool=f"~{record.id}")}
    for name, drop in drops.items():
        await core.store.put(f"inbox/{name}.json", msgspec.json.encode(drop), ANY)
    await Reconciler(await cluster.core(), "p").try_pass()
    (job,) = [key.removeprefix("jobs/").removesuffix(".json") for key in cluster.keys("jobs/")]
    assert (await job_now(core, job)).spec.pool == f"~{record.id}"
    (rejection,) = cluster.keys("inbox/rejected/")
    found = await core.store.get(rejection)
    assert found is not None
    assert b"it is for namespace team, not for other" in found.data


async def test_an_id_finds_its_job_whether_or_not_there_is_a_reservation_now(core: Core) -> None:
    record = await reserve(core)
    (first,) = await routed(core, spec(id="own"))
    await reservations.release(core, record.id, "released")
    (again,) = await routed(core, spec(id="own"))
    assert (again.id, again.spec.pool) == (first.id, f"~{record.id}")
    with pytest.raises(InvalidInput, match="another priority"):
        await routed(core, spec(id="own", priority=3))


async def test_a_job_of_a_group_that_has_ended_is_submitted_again_outside_of_it(core: Core) -> None:
    around = await reserve(core)
    (job,) = await launched(core, [spec()], reservation=around.id)
    await reservations.release(core, ReservationKeys.of_pool(job.spec.pool), "released")
    again = await outside_of_ended(core, await job_now(core, job.id))
    assert again.spec.pool == f"~{around.id}", "that one goes on"
    await reservations.release(core, around.id, "released")
    assert (await outside_of_ended(core, again)).spec.pool == "default"


async def test_an_error_in_one_reservation_keeps_no_job_from_being_submitted(core: Core) -> None:
    odd, record = await reserve(core), await reserve(core)
    with raising_for(odd.id, launching, "goes_into"):
        (job,) = await routed(core, spec())
    assert job.spec.pool == f"~{record.id}"


async def test_reservations_in_one_anothers_pools_are_left_like_ended_ones(core: Core) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        record = ReservationRecord(id=one, kind="reservation", pool=f"~{other}", state="ended")
        await core.records.write(ReservationKeys.key(one), ReservationRecord, record, None)
    job = JobRecord(id="j", spec=spec(pool="~a"), status="stopped")
    assert (await outside_of_ended(core, job)).spec.pool == "default"


async def test_a_client_that_may_not_read_reservations_submits_as_ever(cluster: Cluster) -> None:
    core = await cluster.core()
    await reserve(core)
    cluster.connections[-1].refused = [("get", "placements/"), ("get_if_changed", "placements/")]
    (job,) = await routed(core, spec())
    assert job.spec.pool == "default"


async def held_group(cluster: Cluster, core: Core) -> tuple[ScriptedAgent, JobRecord]:
    """An agent that holds a group of two jobs, of which the first has ended. Returns it and the second job."""
    hand = await join(cluster, "a", supports_placements=True)
    first, second = await launched(core, [spec("a"), spec("b")])
    (key,) = groups(cluster)

    def hold(record: ReservationRecord) -> ReservationRecord:
        members = [PlacementMember(agent="a", bundles=[0, 1])]
        return replace(record, state="held", placement=Placement(round=1, members=members))

    await core.records.change(key, ReservationRecord, hold)
    await reservations.stopping.stop(core, first.id, "done")
    return hand, second


async def passes_with_placements(coordinator: Reconciler) -> None:
    for _ in range(10):
        await passes(coordinator, 8.0)
        await coordinator.schedule_placements()


async def test_a_held_group_ends_though_a_record_of_a_job_that_nobody_runs_is_damaged(
    cluster: Cluster, core: Core
) -> None:
    hand, damaged = await held_group(cluster, core)
    await core.store.put(JobKeys.key(damaged.id), b"{", ANY)
    hand.holding[damaged.id] = Holding(attempt=1, phase="running")
    beating = asyncio.create_task(hand.beat_for_ever())
    (key,) = groups(cluster)
    group, coordinator = ReservationKeys.parse(key) or "", Reconciler(await cluster.core(), "p")
    await passes_with_placements(coordinator)
    assert (await record_now(core, group)).state == "held", "an agent runs it"
    told = {problem.key: problem.what for problem in await fsck.check(core)}
    assert "nobody can run, end or remove this job" in told[JobKeys.key(damaged.id)]
    hand.holding.clear()
    await passes_with_placements(coordinator)
    assert (await record_now(core, group)).reason == "all of its jobs have ended"
    beating.cancel()
