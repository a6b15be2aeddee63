"""The shared memory of all connections of a process has one budget, and what is idle is freed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fray_rpc.server.call_table import CallTable
from fray_rpc.wire import buffers, shared_memory
from fray_rpc.wire.shared_memory import SegmentReceiver, SegmentSender
from tests.support.pages import ROOT
from tests.support.waiting import wait_until

SIZE = 2**20 - buffers.DATA_OFFSET


class Connection:
    def __init__(self) -> None:
        self.sender, self.receiver = SegmentSender(), SegmentReceiver(os.open("/dev/null", os.O_RDONLY))

    def transfer(self) -> memoryview | None:
        reference = self.sender.send(bytes(SIZE))
        if reference is None:
            return None
        self.receiver.add(self.sender.new_descriptors())
        self.sender.finish()
        return self.receiver.take(reference)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shared_memory, "budget", lambda: 4 * 2**20)
    shared_memory._senders.clear()
    yield
    buffers._return_unused()


def test_all_connections_share_one_budget() -> None:
    connections = [Connection() for _ in range(3)]
    kept = [connection.transfer() for connection in connections for _ in range(2)]
    assert [one is None for one in kept] == [False] * 4 + [True] * 2
    kept.clear()
    buffers._return_unused()
    assert connections[2].transfer() is not None, "returned segments make room for other connections"


def test_idle_segments_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(buffers, "RETURN_INTERVAL", 0.01)
    connection = Connection()
    array = connection.transfer()
    assert connection.sender.size == 2**20
    del array
    wait_until(lambda: connection.sender.size == 0)


IDLE_PROCESS = """
from pathlib import Path
from fray_rpc.wire import buffers
from tests.support.pages import ROOT
from tests.support.waiting import wait_until

def resident():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

buffers.IDLE_SECONDS = 0.05
pool = buffers.BufferPool()
views = [pool.take(2**20 * (number % 3 + 1)) for number in range(30)]
for view in views:
    view[:] = bytes(len(view))
del view
before, kept = resident(), views[0]
del views
wait_until(lambda: len(pool._blocks) == 1)
wait_until(lambda: before - resident() > 50 * 2**20)
"""


def test_memory_for_received_buffers_goes_back_to_the_system_when_nothing_uses_it() -> None:
    subprocess.run([sys.executable, "-c", IDLE_PROCESS], check=True, cwd=ROOT)


def test_a_buffer_that_is_used_keeps_its_memory() -> None:
    pool = buffers.BufferPool()
    used, unused = pool.take(2**20), pool.take(2**20)
    unused.release()
    for block in pool._blocks:
        block.used_at = float("-inf")
    with pool._lock:
        assert pool._free_idle()
        assert len(pool._blocks) == 1
        used.release()
        pool._blocks[0].used_at = float("-inf")
        assert not pool._free_idle(), "and then the thread ends"


def test_a_freed_segment_takes_no_memory_although_its_receiver_still_maps_it() -> None:
    connection = Connection()
    assert connection.transfer() is not None
    buffers._return_unused()
    (received,) = connection.receiver._segments.values()
    assert received.segment.file is not None
    before = os.fstat(received.segment.file.number).st_blocks
    with shared_memory._lock:
        connection.sender.abandon(float("inf"), time.monotonic())
    assert os.fstat(received.segment.file.number).st_blocks < before / 10


@pytest.mark.parametrize(("limit", "most"), [("400000000", 50_000_000), ("", 2**30), ("many", 2**30)])
def test_the_budget_is_a_part_of_the_tasks_limit(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(buffers.LIMIT_VAR, limit)
    assert shared_memory.budget.__wrapped__() == most


def test_kept_outcomes_and_pooled_memory_are_parts_of_the_tasks_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(buffers.LIMIT_VAR, "8000000")
    assert (CallTable()._max_bytes, buffers.BufferPool()._max_bytes) == (1_000_000, 1_000_000)
    monkeypatch.delenv(buffers.LIMIT_VAR)
    assert (CallTable()._max_bytes, buffers.BufferPool()._max_bytes) == (64 * 2**20, 64 * 2**20)
