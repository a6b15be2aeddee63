"""Outcomes of tasks: each one is found exactly once, even if its batch lands late."""

from __future__ import annotations

import pytest

from fray_coordinator import worker_pools
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.queue_keys import TaskKeys
from fray_layouts.queue_records import TaskOutcome, encode_outcomes
from tests.support.virtual import EPOCH, Cluster

TASKS = TaskKeys.of("team", "tokenize", 1)


async def test_each_read_returns_the_new_entries_only(cluster: Cluster) -> None:
    worker, driver = await cluster.core(), await cluster.core()
    reader = worker_pools.OutcomeReader(driver, TASKS)
    assert await reader.poll() == []
    for number in range(3):
        batch = [TaskOutcome(f"task-{number}", "value", data=b"x"), TaskOutcome(f"other-{number}", "error", data=b"y")]
        await worker_pools.write_outcomes(worker, TASKS, batch)
        await cluster.clock.sleep(1.0)
        assert await reader.poll() == batch
    assert await reader.poll() == []


async def test_a_batch_that_lands_late_is_found_within_a_repair_interval(cluster: Cluster) -> None:
    worker, driver = await cluster.core(), await cluster.core()
    reader = worker_pools.OutcomeReader(driver, TASKS)
    await cluster.clock.sleep(300.0)
    await worker_pools.write_outcomes(worker, TASKS, [TaskOutcome("new", "value")])
    await reader.poll()
    late = TASKS.outcome(EPOCH + 10.0, "1ate00")
    await worker_pools.write_outcomes(worker, TASKS, [TaskOutcome("late", "value")])
    [written] = [key for key in cluster.keys(TASKS.outcomes) if key not in reader._seen]
    body = await worker.store.get(written)
    assert body is not None
    await worker.store.delete(written)
    await worker.store.put(late, body.data, ABSENT)
    assert await reader.poll() == []
    await cluster.clock.sleep(driver.settings.repair_interval)
    assert await reader.poll() == [TaskOutcome("late", "value")]


async def test_a_poll_costs_one_list_while_nothing_comes(cluster: Cluster) -> None:
    worker, driver = await cluster.core(), await cluster.core()
    reader = worker_pools.OutcomeReader(driver, TASKS)
    await worker_pools.write_outcomes(worker, TASKS, [TaskOutcome("one", "value")])
    await reader.poll()
    asked = len(cluster.connections[1].asked)
    await reader.poll()
    assert [verb for verb, _ in cluster.connections[1].asked[asked:]] == ["list"]


async def test_an_object_that_holds_no_outcomes_is_named_once_and_harms_no_other(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker, driver = await cluster.core(), await cluster.core()
    reader = worker_pools.OutcomeReader(driver, TASKS)
    key = TASKS.outcome(EPOCH, "t0rn00")
    await driver.store.put(key, b"{", ABSENT)
    assert await reader.poll() == []
    await worker_pools.write_outcomes(worker, TASKS, [TaskOutcome("one", "value")])
    assert await reader.poll() == [TaskOutcome("one", "value")]
    await worker.store.put(key, encode_outcomes([TaskOutcome("whole", "value")]), ANY)  # it was copied in two parts
    await cluster.clock.sleep(driver.settings.repair_interval)
    assert await reader.poll() == [TaskOutcome("whole", "value")]
    assert caplog.text.count(key) == 1
