"""One odd object harms only itself: the pass goes on after any error of a step on it, and reports the object."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from fray_coordinator.jobs.claiming import NotClaimed, try_claim
from fray_coordinator.protocol.retention import ENDED_AGENTS_KEPT
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS, MAX_PROBLEMS, UNREADABLE_HOLDER
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile import failure_detector, reaper, removal
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.failure_detector import FailureDetector
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.records import Records
from fray_layouts import codec
from fray_layouts.bounds import MAX_SAFE_INTEGER, MAX_TIME
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import AgentRecord, ClusterSettings, ReconcilerRecord, Resources
from fray_layouts.work_keys import InboxKeys
from tests.support.scripted_agents import agent_now, job_now, join, launch, pass_now, passes
from tests.support.unforeseen import raising_for
from tests.support.virtual import Cluster

ERRORS = (RecursionError("maximum depth"), MemoryError(), ValueError("odd"), OverflowError("too large"), KeyError("k"))
EVERY_ERROR = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def raising(error: Exception, odd: str) -> Any:
    """Reading the record under the key `odd` raises `error`."""
    real = Records.read

    async def read(self: Records, key: str, kind: Any, one_of_many: bool = False) -> Any:
        if key == odd:
            raise error
        return await real(self, key, kind, one_of_many)

    return mock.patch.object(Records, "read", read)


@pytest.mark.parametrize("function", ["observe", "has_timed_out"])
async def test_an_error_in_a_decision_on_one_agent_leaves_the_others_watched(cluster: Cluster, function: str) -> None:
    user = await cluster.core()
    odd, _silent = await join(cluster, "odd"), await join(cluster, "silent")
    with raising_for(odd.id, failure_detector, function):
        await passes(Reconciler(user, "p"), 60.0)
    assert (await agent_now(user, "silent")).state == "dead"
    assert "unforeseen" in (await pass_now(user)).problems[AgentKeys.key(odd.id)]


async def test_an_error_in_the_count_of_one_agents_room_leaves_the_others_counted(cluster: Cluster) -> None:
    user = await cluster.core()
    odd, _other = await join(cluster, "odd"), await join(cluster, "other")
    capacity = Resources(cpu=77)
    await user.records.change(AgentKeys.key(odd.id), AgentRecord, lambda now: replace(now, capacity=capacity))

    def free_slots(free: Resources) -> int:
        if free == capacity:
            raise KeyError("unforeseen")
        return 5

    with mock.patch.object(failure_detector, "free_slots", free_slots):
        await Reconciler(user, "p").try_pass()
    assert (await pass_now(user)).pools["default"].slots == 5
    assert "unforeseen" in (await pass_now(user)).problems[AgentKeys.key(odd.id)]


@EVERY_ERROR
async def test_an_agents_record_that_raises_any_error_leaves_the_others_watched(
    cluster: Cluster, error: Exception
) -> None:
    user = await cluster.core()
    odd, _silent = await join(cluster, "odd"), await join(cluster, "silent")
    with raising(error, AgentKeys.key(odd.id)):
        await passes(Reconciler(user, "p"), 60.0)
    assert (await agent_now(user, "silent")).state == "dead"
    assert type(error).__name__ in (await pass_now(user)).problems[AgentKeys.key(odd.id)]


async def test_problems_of_a_repair_are_reported_until_the_next_one_has_ended(cluster: Cluster) -> None:
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    await user.store.put(JobKeys.key("odd-1"), b"garbage", ANY)
    await passes(coordinator, 30.0)
    cluster.connections[1].before["list", JobKeys.area] = lambda: cluster.clock.sleep(100.0)
    for _ in range(12):
        await passes(coordinator, 10.0)
        assert JobKeys.key("odd-1") in (await pass_now(user)).problems
    assert "list" not in [verb for verb, _ in cluster.connections[1].before]


@EVERY_ERROR
async def test_a_jobs_record_that_raises_any_error_leaves_the_others_repaired(
    cluster: Cluster, error: Exception
) -> None:
    user = await cluster.core()
    odd, sound = await launch(user), await launch(user)
    await user.store.delete(entry_of(sound).key())
    with raising(error, JobKeys.key(odd.id)):
        await Reconciler(user, "p").try_pass()
    assert entry_of(sound).key() in cluster.keys("pending/")
    assert JobKeys.key(odd.id) in (await pass_now(user)).problems


@pytest.mark.parametrize("step", [(FailureDetector, "observe_agents"), (Repair, "run")])
async def test_an_error_outside_of_any_object_does_not_stop_the_rest_of_the_pass(
    cluster: Cluster, step: tuple[type, str]
) -> None:
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    await user.store.put(InboxKeys.key("job"), b'{"name": "job", "entrypoint": {"command": ["true"]}}', ANY)
    with mock.patch.object(*step, side_effect=KeyError("a fault of ours")):
        await coordinator.try_pass()
    assert len(cluster.keys("jobs/")) == 1
    assert any("a fault of ours" in problem for problem in (await pass_now(user)).problems.values())
    await coordinator.try_pass()
    assert (await pass_now(user)).problems == {}


async def test_a_reaping_that_failed_is_told_of_until_somebody_has_done_it(cluster: Cluster) -> None:
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    hand = await join(cluster, "a")
    await launch(user)
    await hand.claim()
    await hand.beat()
    with mock.patch.object(reaper, "reap", side_effect=OSError("a broken disk")):
        await passes(coordinator, 60.0)
    assert "a broken disk" in (await pass_now(user)).problems[AgentKeys.key("a")]
    dead = await user.records.read(AgentKeys.key("a"), AgentRecord)
    assert dead is not None
    await reaper.reap(user, dead)
    await coordinator.try_pass()
    assert (await pass_now(user)).problems == {}


async def test_a_folder_marker_among_the_blobs_keeps_the_pass_from_nothing(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user)
    await user.store.delete(entry_of(job).key())
    cluster.contents.set("blobs/", cluster.contents.objects["cluster.json"])
    await passes(Reconciler(user, "p"), 20.0)
    assert cluster.keys("pending/") == [entry_of(job).key()]
    assert "blobs/" in cluster.keys("blobs/")


async def test_problems_are_bounded_and_the_rest_is_counted(cluster: Cluster) -> None:
    user = await cluster.core()
    for number in range(3 * MAX_PROBLEMS):
        await user.store.put(f"agents/{number:04}.json", b"[]", ANY)
    with mock.patch.object(removal, "remove_blobs", side_effect=ValueError("x" * 100_000)):
        await Reconciler(user, "p").try_pass()
    record = await pass_now(user)
    assert len(record.problems) == MAX_PROBLEMS
    assert record.problems_omitted == 3 * MAX_PROBLEMS + 1 - MAX_PROBLEMS
    lies = await user.store.get(CoordinatorKeys.reconciler)
    assert lies is not None
    assert len(lies.data) < 100_000


async def test_a_lease_that_cannot_be_read_is_replaced_once_it_has_aged(cluster: Cluster) -> None:
    cluster.settings = ClusterSettings(pass_interval=7.5)
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    await join(cluster, "silent")
    await user.store.put(CoordinatorKeys.reconciler, b"garbage", ANY)
    spoilt = cluster.clock.boottime()
    while not await coordinator.try_pass():
        assert coordinator.lease is not None
        assert coordinator.lease.record.holder == UNREADABLE_HOLDER
        await cluster.clock.sleep(7.5)
    aged = cluster.clock.boottime() - spoilt
    assert LEASE_INTERVALS * 7.5 <= aged <= (LEASE_INTERVALS + 1) * 7.5
    await passes(coordinator, 60.0)
    assert (await pass_now(user)).holder == "p"
    assert (await agent_now(user, "silent")).state == "dead"


@pytest.mark.parametrize("holder", ["\0", "a/b", "x" * 300])
async def test_a_lease_whose_holder_has_no_id_of_an_agent_is_replaced_once_it_has_aged(
    cluster: Cluster, holder: str
) -> None:
    user = await cluster.core()
    await user.store.put(
        CoordinatorKeys.reconciler, codec.encode(ReconcilerRecord(op="x", created_op="x", holder=holder)), ANY
    )
    await passes(Reconciler(user, "p"), 2 * LEASE_INTERVALS * user.settings.pass_interval)
    assert (await pass_now(user)).holder == "p"


async def test_however_far_a_stranger_says_that_the_pass_has_come_its_record_can_be_read(cluster: Cluster) -> None:
    user = await cluster.core()
    far = ReconcilerRecord(holder="", progress=MAX_SAFE_INTEGER, op="far")
    await user.store.put(CoordinatorKeys.reconciler, codec.encode(far), ANY, far.op)
    await passes(Reconciler(await cluster.core(), "p"), 30.0)
    assert (await pass_now(user)).holder == "p"


async def test_a_lease_that_is_spoilt_under_its_holder_is_taken_anew(cluster: Cluster) -> None:
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    await passes(coordinator, 20.0)

    async def spoil() -> None:
        await user.store.put(CoordinatorKeys.reconciler, b"[" * 5, ANY)

    cluster.connections[1].before["list", AgentKeys.area] = spoil
    await passes(coordinator, 60.0)
    assert (await pass_now(user)).holder == "p"


async def test_one_run_of_once_serves_a_cluster_whose_lease_cannot_be_read(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user)
    await user.store.delete(entry_of(job).key())
    await user.store.put(CoordinatorKeys.reconciler, b"garbage", ANY)
    await Reconciler(await cluster.core(), "once").run_once()
    assert cluster.keys("pending/") == [entry_of(job).key()]
    lies = await user.store.get(CoordinatorKeys.reconciler)
    assert lies is not None
    assert lies.data == b"garbage", "it was not seen for long enough"


@pytest.mark.slow
async def test_however_many_files_lie_in_the_inbox_a_death_is_found_in_its_time(cluster: Cluster) -> None:
    user, silent = await cluster.core(), await join(cluster, "silent")
    for number in range(2500):
        await user.store.put(InboxKeys.key(f"{number:04}"), b'{"name": ', ANY)
    coordinator = slowed(cluster, Reconciler(await cluster.core(local=False), "p"))
    begun = cluster.clock.boottime()
    while (await agent_now(user, silent.id)).state == "live":
        turned = cluster.clock.boottime()
        await coordinator.try_pass()
        assert cluster.clock.boottime() - turned <= 3.0
        await cluster.clock.sleep(7.5)
    assert cluster.clock.boottime() - begun <= 45.0
    await user.store.put(InboxKeys.key("late"), b'{"name": "job", "entrypoint": {"command": ["true"]}}', ANY)
    await passes(coordinator, 120.0)
    assert len(cluster.keys("jobs/")) == 1


async def test_entries_from_the_future_without_jobs_are_tried_once_and_go(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "agent")
    absent = PendingKey("default", 499, MAX_TIME, "absent-1", 1, Shape(1000, 0, 0, "", 0, False))
    assert await try_claim(user, absent, agent.id, agent.id) == NotClaimed(None, 0)
    await user.store.put(absent.key(), b"{}", ANY)
    await Reconciler(user, "p").try_pass()
    assert cluster.keys("pending/") == []


async def test_however_much_strangers_say_that_agents_have_the_pass_leaves_a_record_that_can_be_read(
    cluster: Cluster,
) -> None:
    user = await cluster.core()
    much = Resources(cpu=MAX_SAFE_INTEGER)
    for number in range(1100):
        agent = AgentRecord(id=f"liar-{number}", host="h", pool="default", capacity=much, free=much, op=f"{number}")
        await user.store.put(AgentKeys.key(agent.id), codec.encode(agent), ANY, agent.op)
    await Reconciler(user, "p").try_pass()
    assert (await pass_now(user)).pools["default"].slots == MAX_SAFE_INTEGER


@pytest.mark.slow
async def test_however_many_records_of_agents_that_left_lie_there_they_are_read_once_and_go(cluster: Cluster) -> None:
    user = await cluster.core()
    for number in range(ENDED_AGENTS_KEPT + 500):
        left = AgentRecord(id=f"h-{number:09}", host="h", pool="default", state="left", op=f"{number}")
        await user.store.put(AgentKeys.key(left.id), codec.encode(left), ANY, left.op)
    observer = await cluster.core()
    connection = cluster.connections[-1]
    await passes(Reconciler(observer, "p"), 60.0)
    assert (
        sum(verb == "get" and key.startswith("agents/h-") for verb, key in connection.asked) == ENDED_AGENTS_KEPT + 500
    )
    assert len(cluster.keys("agents/")) == ENDED_AGENTS_KEPT + 500
    await passes(Reconciler(observer, "p"), user.settings.quarantine + 20.0)
    assert len(cluster.keys("agents/")) == ENDED_AGENTS_KEPT


async def test_a_record_that_cannot_be_read_is_read_once_and_told_of_by_each_pass(cluster: Cluster) -> None:
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    odd = ["agents/odd.json", "jobs/odd-1.json", "actors/default/a/b.json"]
    for key in odd:
        await user.store.put(key, b"[]", ANY)
    await passes(coordinator, 600.0)
    assert [cluster.connections[-1].asked.count(("get", key)) for key in odd] == [1, 1, 1]
    assert list((await pass_now(user)).problems) == odd
    await user.store.delete(odd[0])
    await coordinator.try_pass()
    assert odd[0] not in (await pass_now(user)).problems


async def test_a_first_look_that_outlasts_the_lease_keeps_it(cluster: Cluster) -> None:
    first, second = Reconciler(await cluster.core(), "p1"), Reconciler(await cluster.core(), "p2")
    await join(cluster, "slow")
    cluster.connections[0].before["get", "agents/slow"] = lambda: cluster.clock.sleep(100.0)
    turn = asyncio.create_task(first.try_pass())
    for _ in range(10):
        await cluster.clock.sleep(7.5)
        assert not await second.try_pass()
    assert await turn
    assert first.holds_lease


@pytest.mark.parametrize("state", ["draining", "live"])
async def test_the_jobs_of_an_agent_in_a_state_that_one_does_not_know_stay_with_it(
    cluster: Cluster, state: str
) -> None:
    user, newer = await cluster.core(), await join(cluster, "newer")
    job = await launch(user)
    await newer.claim()
    await user.records.update(
        AgentKeys.key("newer"), AgentRecord, lambda now: replace(now, state=state) if now else None
    )
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 20.0)
    assert (await job_now(user, job.id)).status == "running"
    assert await newer.beat()
    assert (await agent_now(user, "newer")).state == state


async def test_a_copy_of_an_agents_record_requeues_nothing(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "host-1")
    job = await launch(user)
    await agent.claim()
    copy = cluster.contents.objects[AgentKeys.key(agent.id)]
    cluster.contents.set("agents/host-1_bak.json", copy)
    beating = asyncio.create_task(agent.beat_for_ever())
    await passes(Reconciler(user, "p"), 200.0)
    now = await job_now(user, job.id)
    assert (now.status, now.attempt) == ("running", 1)
    assert "agents/host-1_bak.json" in (await pass_now(user)).problems
    beating.cancel()


def slowed(cluster: Cluster, coordinator: Reconciler) -> Reconciler:
    """A connection on which each request takes as long as one to a bucket."""
    connection = cluster.connections[-1]
    real = connection._pass

    async def slow(verb: str, key: str) -> None:
        await cluster.clock.sleep(0.05)
        await real(verb, key)

    connection._pass = slow  # type: ignore[method-assign]
    return coordinator


@pytest.mark.parametrize(("local", "most"), [(True, 2), (False, 16)])
async def test_files_are_admitted_few_at_a_time_where_few_threads_serve_all_requests(
    cluster: Cluster, local: bool, most: int
) -> None:
    core = await cluster.core(local=local)
    for number in range(100):
        await core.store.put(InboxKeys.key(f"{number:03}"), b"{", ANY)
    connection, busy, seen = cluster.connections[-1], set[str](), list[int]()
    real = connection.get

    async def get(key: str) -> Any:
        busy.add(key)
        seen.append(len(busy))
        await cluster.clock.sleep(1.0)
        busy.remove(key)
        return await real(key)

    with mock.patch.object(connection, "get", get):
        await Admission(core).run()
    assert max(seen) == most
