"""The pass of a large cluster: it watches agents during a long repair, and agents send fewer requests."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.protocol.heartbeat import paced_interval
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.failure_detector import FailureDetector
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.store.interface import ANY, Listed, Object
from fray_layouts.object_keys import AgentKeys, BlobKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import (
    AgentRecord,
    PoolSummary,
    ReconcilerRecord,
    Resources,
)
from fray_layouts.spec import MAX_INLINE_BYTES
from fray_layouts.work_keys import InboxKeys
from tests.support.scripted_agents import agent_now, job_now, join, launch, pass_now, passes
from tests.support.virtual import Cluster

DEATH, PASS_INTERVAL = 25.0, 8.0
HOST = Resources(cpu=1000, memory=2**33, disk=2**33)
CALL = {"callable": {"pickle": "A" * (MAX_INLINE_BYTES - 1000)}}


async def test_a_death_is_told_while_a_repair_goes_on_and_the_repair_ends(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await user.store.delete(entry_of(job).key())
    gate = asyncio.Event()
    coordinator = Reconciler(await cluster.core(), "p")
    cluster.connections[-1].before["list", "jobs/"] = gate.wait
    await passes(coordinator, 400.0)
    assert (await agent_now(user, agent.id)).state == "dead"
    assert (await pass_now(user)).repaired_at == 0.0
    gate.set()
    await passes(coordinator, 10.0)
    assert (await pass_now(user)).repaired_at > 0.0
    assert cluster.keys("pending/") == [entry_of(job).key()]


async def test_a_death_is_told_while_a_file_of_the_inbox_is_looked_at(cluster: Cluster) -> None:
    """This holds for any number of files, and for any time that each takes."""
    user, agent = await cluster.core(), await join(cluster, "a")
    await user.store.put(InboxKeys.key("drop"), b"{}", ANY)
    coordinator, gate = Reconciler(await cluster.core(), "p"), asyncio.Event()
    cluster.connections[-1].before["get", InboxKeys.area] = gate.wait
    await passes(coordinator, DEATH + 2 * PASS_INTERVAL)
    assert (await agent_now(user, agent.id)).state == "dead"
    gate.set()
    await passes(coordinator, 10.0)
    assert cluster.keys("inbox/drop") == []


async def test_a_waiting_job_takes_at_most_400_bytes_between_two_repairs(cluster: Cluster) -> None:
    """A million of them take 400 MB of the pass's holder, whatever is in their records."""
    user, agent, jobs = await cluster.core(), await join(cluster, "a"), 300
    parent = await launch(user)
    await agent.claim()
    workspace = {"blob": BlobKeys.key(user.now(), "0" * 64)}
    for _ in range(jobs):
        spec = {"name": "evaluate-checkpoint", "parent": parent.id, "pending_timeout": 1e9, "entrypoint": CALL}
        await launch(user, 1, environment={"workspace": workspace}, **spec)
        await asyncio.sleep(0.01)
    await Reconciler(user, "p").repair.run({})  # what is loaded once is none of theirs
    repair = Reconciler(user, "p").repair
    tracemalloc.start()
    try:
        await repair.run({})
        gc.collect()
        ours = [tracemalloc.Filter(True, f"*/{package}/*") for package in ("fray_layouts", "fray_coordinator")]
        kept = tracemalloc.take_snapshot().filter_traces(ours)  # and not what else goes on in this process
    finally:
        tracemalloc.stop()
    assert sum(trace.size for trace in kept.traces) <= 400 * jobs
    assert repair.size == jobs + 1


async def test_a_job_that_is_claimed_between_the_listings_gets_no_entry_again(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    coordinator = Reconciler(await cluster.core(), "p")

    async def claimed() -> None:
        held = await agent.claim()
        await user.store.delete(entry_of(held.record).key())

    cluster.connections[-1].before["list", "pending/"] = claimed
    before = await user.store.get("pools/default/doorbell")
    await coordinator.try_pass()
    assert cluster.keys("pending/") == []
    assert await user.store.get("pools/default/doorbell") == before
    assert (await job_now(user, job.id)).status == "running"


async def test_the_effort_of_an_observation_for_each_agent_does_not_grow_with_the_fleet(cluster: Cluster) -> None:
    for number in range(30):
        await join(cluster, f"a{number}")
    watch = FailureDetector(await cluster.core())
    with mock.patch.object(FailureDetector, "watched", autospec=True, side_effect=FailureDetector.watched) as watched:
        await watch.observe_agents({})
    assert watched.call_count < 10


async def test_a_long_observation_adds_to_the_age_of_the_agents_that_it_read_first(cluster: Cluster) -> None:
    """Each observation hangs for 7 s at one agent's record. The silent other one is still dead after its 25 s."""

    user = await cluster.core()
    beating, silent = await join(cluster, "beating"), await join(cluster, "silent")
    watch = FailureDetector(await cluster.core())
    connection = cluster.connections[-1]
    begun = cluster.clock.boottime()
    while (await agent_now(user, silent.id)).state == "live":
        await beating.beat()
        connection.before["get", "agents/beating"] = lambda: cluster.clock.sleep(7.0)
        await watch.observe_agents({})
        await cluster.clock.sleep(2.0)
    assert 25.0 <= cluster.clock.boottime() - begun <= 45.0


@pytest.mark.slow
async def test_very_many_new_records_keep_no_known_agent_from_being_declared_dead_in_time(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    silent = await join(cluster, "silent")
    coordinator, connection = Reconciler(core, "p"), cluster.connections[1]
    read = connection.get

    async def read_slowly(key: str) -> Object | None:
        await cluster.clock.sleep(1.0)
        return await read(key)

    await passes(coordinator, PASS_INTERVAL)
    connection.get = read_slowly  # type: ignore[method-assign]
    for number in range(5000):
        left = AgentRecord(id=f"a{number}", host="h", pool="default", state="left")
        await user.records.write(AgentKeys.key(left.id), AgentRecord, left, None)
    await passes(coordinator, DEATH + PASS_INTERVAL)
    assert (await agent_now(user, silent.id)).state == "dead"
    assert not coordinator.detector.complete
    await passes(coordinator, 90.0)
    assert coordinator.detector.complete


async def test_a_long_listing_adds_to_the_age_of_the_agents_that_it_shows(cluster: Cluster) -> None:
    """There are three pages of a second and a half each, and each observation begins 2 s after the last has ended."""
    user, core = await cluster.core(), await cluster.core(local=False)
    connection = cluster.connections[1]
    listed = connection.list

    async def list_slowly(prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        rows = await listed(prefix, after, limit, versions)
        await cluster.clock.sleep(1.5 * len(rows) / 1000 if prefix == AgentKeys.area else 0.0)
        return rows

    for number in range(3000):
        left = AgentRecord(id=f"a{number}", host="h", pool="default", state="left")
        await user.records.write(AgentKeys.key(left.id), AgentRecord, left, None)
    coordinator = Reconciler(core, "p")
    await passes(coordinator, 10.0)
    connection.list = list_slowly  # type: ignore[method-assign]
    silent = await join(cluster, "silent")
    await passes(coordinator, DEATH + 3 * PASS_INTERVAL, every=2.0)
    assert (await agent_now(user, silent.id)).state == "dead"


async def test_many_records_that_are_never_answered_delay_no_death(cluster: Cluster) -> None:
    user, core = await cluster.core(), await cluster.core()
    coordinator = Reconciler(core, "p")
    for number in range(640):
        await user.store.put(AgentKeys.key(f"odd-{number}"), b"", ANY)
    cluster.connections[1].unanswered = [("get", AgentKeys.key("odd")[: -len(".json")])]
    await passes(coordinator, 40.0)
    silent = await join(cluster, "silent")
    await passes(coordinator, DEATH + 2 * PASS_INTERVAL)
    assert (await agent_now(user, silent.id)).state == "dead"
    assert sum(key.startswith("agents/odd") for key in coordinator.detector.problems) == 640


async def test_a_finished_job_is_read_once_and_goes_when_it_is_due_after_its_child(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    parent = await launch(user)
    held = await agent.claim()
    child = await launch(user, parent=parent.id)
    await agent.end(held)
    coordinator = Reconciler(await cluster.core(), "p")
    connection = cluster.connections[-1]
    await passes(coordinator, 200.0)
    reads = connection.asked.count(("get", JobKeys.key(parent.id)))
    await passes(coordinator, 200.0)
    assert coordinator.repair.size == 2
    assert connection.asked.count(("get", JobKeys.key(parent.id))) == reads
    await cluster.clock.sleep(user.settings.retention + 60.0)
    await passes(coordinator, 200.0)
    left = cluster.keys("jobs/")
    assert left == []
    removed = [key for verb, key in connection.asked if verb == "delete" and key.startswith("jobs/")]
    assert removed == [JobKeys.key(child.id), JobKeys.key(parent.id)]


async def test_a_reconciler_that_loses_the_lease_leaves_the_repair_to_its_successor(cluster: Cluster) -> None:
    user, coordinator = await cluster.core(), Reconciler(await cluster.core(), "p")
    gate = asyncio.Event()
    cluster.connections[-1].before["list", "jobs/"] = gate.wait
    await coordinator.try_pass()
    await user.records.update(CoordinatorKeys.reconciler, ReconcilerRecord, lambda now: ReconcilerRecord(holder="q"))
    await coordinator.try_pass()
    gate.set()
    await cluster.clock.sleep(1.0)
    assert ("list", "children/") not in cluster.connections[-1].asked


async def test_a_repair_of_very_many_jobs_comes_more_rarely(cluster: Cluster) -> None:
    coordinator = Reconciler(await cluster.core(), "p")
    lists = cluster.connections[-1].asked
    with mock.patch.object(Repair, "size", 1_000_000):
        await passes(coordinator, 490.0)
        early = lists.count(("list", "jobs/"))
        await passes(coordinator, 20.0)
    assert lists.count(("list", "jobs/")) == early + 1
    assert early == 1


async def test_the_lease_names_only_agents_that_owe_a_beat(cluster: Cluster) -> None:
    user = await cluster.core()
    beating, silent = await join(cluster, "beating"), await join(cluster, "silent")
    coordinator = Reconciler(await cluster.core(), "p")
    interval = (await agent_now(user, silent.id)).interval
    await coordinator.try_pass()
    for _ in range(3):
        await cluster.clock.sleep(0.6 * interval)
        await beating.beat()
        await coordinator.try_pass()
    assert list((await pass_now(user)).suspects) == [silent.id]


@pytest.mark.parametrize(("live", "seconds"), [(1, 5.0), (2500, 5.0), (10_000, 20.0)])
def test_the_larger_the_fleet_the_more_rarely_each_looks(live: int, seconds: float) -> None:
    assert paced_interval(5.0, live, 500.0) == seconds


async def test_every_agent_of_a_large_fleet_asks_more_rarely(cluster: Cluster, tmp_path: Path) -> None:
    """The pass of another agent tells it the size of the fleet."""

    core = await cluster.core(local=False)
    connection = cluster.connections[-1]
    held = ReconcilerRecord(holder="another", pools={"default": PoolSummary(agents=10_000, slots=10_000)})
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path))
    running = asyncio.create_task(agent.run())
    for _ in range(200):  # the other's pass goes on
        await core.records.update(CoordinatorKeys.reconciler, ReconcilerRecord, lambda now: held)
        await cluster.clock.sleep(5.0)
    connection.asked.clear()
    for _ in range(720):
        await core.records.update(CoordinatorKeys.reconciler, ReconcilerRecord, lambda now: held)
        await cluster.clock.sleep(5.0)
    counts = {
        "bells": connection.asked.count(("get_if_changed", "pools/default/doorbell")),
        "lists": connection.asked.count(("list", "pending/default/")),
        "beats": sum(verb == "put" and key.startswith("agents/") for verb, key in connection.asked),
        "turns": connection.asked.count(("get_if_changed", CoordinatorKeys.reconciler)),
    }
    agent.terminate()
    await running
    counts = counts
    assert counts["bells"] == pytest.approx(180, rel=0.1)  # each 20 s
    assert counts["lists"] == pytest.approx(18, abs=3)  # each 200 s
    assert counts["beats"] == pytest.approx(15, abs=2)  # each 240 s
    assert counts["turns"] < 100  # each 60 s, but for a rare shift as a watcher


async def test_very_many_items_are_worked_off_a_few_at_a_time_in_order(cluster: Cluster) -> None:
    busy: list[int] = []
    tasks: list[int] = []

    async def act(item: int) -> int:
        busy.append(item)
        tasks.append(len(asyncio.all_tasks()))
        await asyncio.sleep(1.0 / (item + 1))
        busy.remove(item)
        return 2 * item

    assert await map_concurrently(range(100), act, at_once=4) == [2 * n for n in range(100)]
    assert max(tasks) <= 4 + 2
