"""If the store never answers for one object of a queue, consumers still get the other items, and these are removed."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fray_coordinator.errors import StoreUnavailable
from tests.support.queue_processes import NAMES, QueueProcess, queue_process
from tests.support.virtual import Cluster

LOCAL = pytest.mark.parametrize("local", [True, False])


async def pushed(cluster: Cluster, local: bool) -> tuple[QueueProcess, list[str]]:
    """A consumer, and the segments of five items."""
    producer, consumer = await queue_process(cluster, local), await queue_process(cluster, local)
    await producer.push(*"abcde", batch=1)
    return consumer, cluster.keys(NAMES.segments)


async def delivered(consumer: QueueProcess, seconds: float) -> str:
    """The items that arrive within this time; the errors of one segment are reported in between."""
    found, clock = "", consumer.queue.core.clock
    end = clock.boottime() + seconds
    while clock.boottime() < end:
        with suppress(StoreUnavailable):
            for delivery in await consumer.take(1):
                found += delivery.item.body.decode()
                await consumer.consumer.done([delivery.id])
        await clock.sleep(0.5)
    return found


@LOCAL
async def test_a_segment_that_is_not_answered_for_hides_no_other(cluster: Cluster, local: bool) -> None:
    consumer, segments = await pushed(cluster, local)
    cluster.connections[-1].unanswered = [("get", segments[1])]
    assert await delivered(consumer, 30.0) == "acde"
    cluster.connections[-1].unanswered = []
    assert await delivered(consumer, 300.0) == "b"


@LOCAL
async def test_a_finished_segment_that_cannot_be_removed_keeps_no_other(cluster: Cluster, local: bool) -> None:
    consumer, segments = await pushed(cluster, local)
    cluster.connections[-1].unanswered = [("delete", segments[0])]
    assert await delivered(consumer, 3000.0) == "abcde"
    assert [key for key in cluster.keys(NAMES.segments) if not key.startswith(segments[0])] == []


@LOCAL
async def test_a_lease_that_cannot_be_written_hides_no_other_segment(cluster: Cluster, local: bool) -> None:
    """This consumer makes no other write, and only a successful write would tell it that the disk is not full."""
    consumer, segments = await pushed(cluster, local)
    cluster.connections[-1].unanswered = [("put", segments[0]), ("delete", segments[0])]
    assert await delivered(consumer, 60.0) == "bcde"
    cluster.connections[-1].unanswered = []
    assert await delivered(consumer, 300.0) == "a"
