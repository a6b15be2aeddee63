"""How the tasks of one submission are grouped for the queue."""

from __future__ import annotations

import pytest

from fray.pool.queue_transport import plan_batches


@pytest.mark.parametrize("workers", [1, 4, 100])
@pytest.mark.parametrize("tasks", [1, 2, 65, 320, 2000, 100_000])
def test_no_worker_has_several_tasks_before_it_while_others_find_none(tasks: int, workers: int) -> None:
    batches = [min(batch, count - at) for count, batch in plan_batches(tasks, workers) for at in range(0, count, batch)]
    assert sum(batches) == tasks
    for number, size in enumerate(batches):
        assert size == 1 or sum(batches[number + 1 :]) >= (workers - 1) * size
    assert batches[-min(tasks, workers) :] == [1] * min(tasks, workers)


def test_many_tasks_are_few_objects() -> None:
    counted = [-(-count // batch) for count, batch in plan_batches(100_000, 4)]
    assert sum(counted) < 600
    assert len(counted) < 8
