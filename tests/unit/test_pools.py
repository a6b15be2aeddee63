"""Pools in storage: who owns a name, also if a driver died while it made or removed a pool."""

from __future__ import annotations

import pytest

from fray_coordinator import worker_pools
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.errors import NameTaken
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_coordinator.protocol.retention import retention_seconds
from fray_coordinator.queue.delivery import EncodedItem
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.open_queue import find_queue, open_queue
from fray_coordinator.queue.producer import Producer
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import JobKeys, NameKeys
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.queue_records import QueueRecord, TaskOutcome
from fray_layouts.records import ClusterSettings
from tests.support.virtual import Cluster

QUEUE = QueueRecord(max_deliveries=3)


async def made(core: Core, exist_ok: bool = True) -> int:
    incarnation, _ = await worker_pools.create(core, "team", "nightly", QUEUE, exist_ok)
    return incarnation


async def test_the_second_creator_gets_an_error_or_the_first_pool(cluster: Cluster) -> None:
    core = await cluster.core()
    incarnation = await made(core, exist_ok=False)
    await worker_pools.note_jobs(core, TaskKeys.of("team", "nightly", incarnation), ["worker-1"], ())
    found, record = await worker_pools.create(core, "team", "nightly", QUEUE, exist_ok=True)
    assert (found, record.jobs) == (incarnation, ["worker-1"])
    with pytest.raises(NameTaken):
        await made(core, exist_ok=False)


@pytest.mark.parametrize("died_before", ["the record", "the queue"])
async def test_a_pool_whose_driver_died_while_it_was_made_is_completed(cluster: Cluster, died_before: str) -> None:
    core = await cluster.core()
    if died_before == "the record":
        await naming.take_name(core, "team", worker_pools.NAME_KIND, "nightly", "")
    else:
        await core.store.delete(QueueKeys.of("team", "nightly", await made(core)).settings)
    incarnation = await made(core)
    queue = await find_queue(core, QueueKeys.of("team", "nightly", incarnation))
    assert queue is not None
    assert queue.settings.max_deliveries == 3
    assert await worker_pools.find(core, "team", "nightly") is not None


async def test_a_queue_without_a_pool_keeps_its_name(cluster: Cluster) -> None:
    core = await cluster.core()
    holder = await naming.take_name(core, "team", worker_pools.NAME_KIND, "nightly", "")
    await open_queue(core, QueueKeys.of("team", "nightly", holder.incarnation))
    with pytest.raises(NameTaken, match="belongs to no pool"):
        await made(core)


async def test_a_note_of_jobs_after_the_pool_was_removed_leaves_nothing(cluster: Cluster) -> None:
    core = await cluster.core()
    incarnation = await made(core)
    tasks = TaskKeys.of("team", "nightly", incarnation)
    assert await worker_pools.exists(core, tasks)
    await worker_pools.remove(core, "team", "nightly", incarnation)
    assert not await worker_pools.exists(core, tasks)
    await worker_pools.note_jobs(core, tasks, ["worker-1"], ())
    assert cluster.keys("tasks/") == []
    assert cluster.keys("queues/") == []


async def test_jobs_whose_records_are_gone_are_known_as_such(cluster: Cluster) -> None:
    core = await cluster.core()
    assert await jobs_by_id(core, ["gone-1"], {}) == {"gone-1": None}


MONTH = retention_seconds(ClusterSettings())


async def test_objects_of_an_unused_pool_are_removed_after_retention(cluster: Cluster) -> None:
    """Outcomes and records of dead drivers once stayed for ever."""

    core = await cluster.core()
    tasks = TaskKeys.of("team", "nightly", await made(core))
    await worker_pools.write_outcomes(core, tasks, [TaskOutcome("a", "submitted")])
    await core.store.put(tasks.object("digest"), b"function", ANY)
    await core.store.put(f"{tasks.outcomes}zzzzz/zz/no-outcome", b"a stranger's", ANY)
    queue = await find_queue(core, QueueKeys.of("team", "nightly", 1))
    assert queue is not None
    await Producer(queue, QueueDoorbell(queue)).push([EncodedItem(b"task")])
    await core.clock.sleep(MONTH - 100.0)
    await worker_pools.remove_unused(core, {})
    assert await worker_pools.exists(core, tasks)
    await core.clock.sleep(200.0)
    await worker_pools.remove_unused(core, {})
    assert cluster.keys("tasks/") + cluster.keys("queues/") == []
    assert await made(core) == 2


@pytest.mark.parametrize("use", ["a driver", "an outcome", "a job"])
async def test_a_pool_that_somebody_uses_stays(cluster: Cluster, use: str) -> None:
    core = await cluster.core()
    tasks = TaskKeys.of("team", "nightly", await made(core))
    if use == "a job":
        await worker_pools.note_jobs(core, tasks, ["worker-1"], ())
        await core.store.put(JobKeys.key("worker-1"), b"odd", ANY)
    await core.clock.sleep(MONTH - 100.0)
    if use == "a driver":
        await worker_pools.touch(core, tasks)
    elif use == "an outcome":
        await worker_pools.write_outcomes(core, tasks, [TaskOutcome("a", "submitted")])
    await core.clock.sleep(200.0)
    await worker_pools.remove_unused(core, {})
    assert await worker_pools.exists(core, tasks)


async def test_a_pool_that_a_driver_attaches_to_just_before_it_is_removed_stays(cluster: Cluster) -> None:
    core, driver = await cluster.core(), await cluster.core()
    tasks = TaskKeys.of("team", "nightly", await made(core))
    await core.clock.sleep(MONTH + 100.0)
    cluster.connections[0].before["delete", tasks.pool] = lambda: worker_pools.touch(driver, tasks)
    await worker_pools.remove_unused(core, {})
    assert await worker_pools.exists(core, tasks)


async def test_the_repair_removes_pools_that_nobody_uses_and_names_odd_ones(cluster: Cluster) -> None:
    core = await cluster.core()
    repair = Repair(core, Admission(core))
    await made(core)
    await worker_pools.create(core, "team", "odd", QUEUE)
    await core.store.put(TaskKeys.of("team", "odd", 1).pool, b"garbage", ANY)
    await core.clock.sleep(MONTH + 100.0)
    await repair.run({})
    assert [key for key in cluster.keys("tasks/") if "nightly" in key] == []
    assert list(repair.problems) == [NameKeys.key("team", worker_pools.NAME_KIND, "odd")]
