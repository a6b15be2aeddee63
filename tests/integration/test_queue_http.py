"""Queues behind a server, used over real connections."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray.cluster import StorageCluster
from fray.queue import FileQueue, HttpQueue, HttpQueueServer, MemoryQueue, UnknownLease
from fray.queue.engine import Delivery
from fray.queue.memory_queue import MemoryEngine
from fray_coordinator.queue.delivery import QueueNotFound
from fray_layouts.errors import InvalidInput
from fray_rpc.errors import ConnectionLost
from tests.support.waiting import PATIENCE

CLUSTER = "alone"


@pytest.fixture
def server(cluster: StorageCluster) -> Iterator[HttpQueueServer]:
    with HttpQueueServer(cluster=cluster) as running:
        yield running


_CONSUMER = """
import pickle, sys
queue = pickle.loads(bytes.fromhex(sys.argv[1]))
for lease in queue:
    with lease:
        print(lease.item, flush=True)
"""


_VICTIM = """
import os, pickle, signal, sys
queue = pickle.loads(bytes.fromhex(sys.argv[1]))
while queue.size() + queue.pending():
    for lease in queue.pop_many(3, 5.0, wait=0.5):
        if lease.item == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        lease.done()
"""


def elsewhere(queue: HttpQueue[str]) -> list[str]:
    """The items that a consumer in another process takes."""
    command = [sys.executable, "-c", _CONSUMER, pickle.dumps(queue).hex()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_consumer_in_another_process_takes_the_pushed_items(server: HttpQueueServer) -> None:
    queue = server.new_queue("prompts")
    queue.push_many(["a", "b", "c"])
    assert elsewhere(queue) == ["a", "b", "c"]
    assert (queue.size(), queue.pending()) == (0, 0)


def test_the_same_name_is_the_same_queue(server: HttpQueueServer) -> None:
    server.new_queue("prompts").push(1)
    by_url = HttpQueue(f"http://{server.get_client_host()}:{server.port}", "prompts", cluster=server._cluster)
    assert by_url.peek() == 1
    assert server.new_queue("prompts").size() == 1
    assert server.new_queue("other").size() == 0


def test_leases_behave_as_everywhere(server: HttpQueueServer) -> None:
    queue = server.new_queue("prompts")
    queue.push_many([1, 2])
    first = queue.pop()
    assert first is not None
    queue.release(first)
    again = queue.pop()
    assert again is not None
    assert (again.item, again.delivery) == (1, 2)
    with pytest.raises(UnknownLease):
        queue.done(first)
    queue.extend(again, 120.0)
    queue.done(again)
    with pytest.raises(UnknownLease):
        queue.done(again)


def test_a_queue_in_storage_may_be_behind_it(server: HttpQueueServer, tmp_path: Path) -> None:
    behind: FileQueue[str] = FileQueue(tmp_path / "queue")
    queue = server.new_queue("kept", behind)
    queue.push("x")
    assert behind.peek() == "x"
    assert elsewhere(queue) == ["x"]
    assert behind.size() == 0


@pytest.mark.slow
@pytest.mark.parametrize("behind", ["memory", "files"])
def test_an_item_that_kills_its_consumers_is_a_dead_letter_and_its_neighbours_are_done(
    server: HttpQueueServer, tmp_path: Path, behind: str
) -> None:
    """Once it was delivered for ever, and the items behind it never were."""
    queue = server.new_queue("prompts", MemoryQueue(2) if behind == "memory" else FileQueue(tmp_path, max_deliveries=2))
    queue.push_many(["good", "deadly", "alive"], batch=3)
    killed = 0
    while subprocess.run([sys.executable, "-c", _VICTIM, pickle.dumps(queue).hex()], check=False).returncode:
        killed += 1
        assert killed <= 3
    assert [letter.item for letter in queue.letters()] == ["deadly"]
    assert (queue.size(), queue.pending()) == (0, 0)


def test_a_lease_of_a_server_that_was_restarted_ends_nothing(cluster: StorageCluster) -> None:
    with HttpQueueServer(cluster=cluster) as first:
        old = first.new_queue("prompts")
        old.push("old")
        stale = old.pop()
        assert stale is not None
    with HttpQueueServer(cluster=cluster) as second:
        new = second.new_queue("prompts")
        new.push("new")
        mine = new.pop()
        assert mine is not None
        with pytest.raises(UnknownLease):
            new.done(stale)
        new.done(mine)


async def test_a_cancelled_pop_gives_its_items_back(server: HttpQueueServer, monkeypatch: pytest.MonkeyPatch) -> None:
    take, asked, taken = MemoryEngine.take, threading.Event(), threading.Event()

    async def noted(engine: MemoryEngine, *args: Any) -> list[Delivery]:
        asked.set()
        deliveries = await take(engine, *args)
        taken.set()
        return deliveries

    monkeypatch.setattr(MemoryEngine, "take", noted)
    queue = server.new_queue("prompts")
    waiting = asyncio.ensure_future(queue.aio.pop(10 * PATIENCE, wait=PATIENCE))
    assert await asyncio.to_thread(asked.wait, PATIENCE)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await queue.aio.push("x")
    assert await asyncio.to_thread(taken.wait, PATIENCE)  # the server does not know that nobody waits any more
    lease = await queue.aio.pop(wait=PATIENCE / 10)
    assert lease is not None
    assert (lease.item, lease.delivery) == ("x", 2)


async def test_many_consumers_may_wait_at_once(server: HttpQueueServer) -> None:
    queue = server.new_queue("prompts")

    waiting = [asyncio.ensure_future(queue.aio.pop(wait=200.0)) for _ in range(200)]
    await queue.aio.push_many(range(200))
    assert sorted(lease.item for lease in await asyncio.gather(*waiting) if lease is not None) == list(range(200))


def test_a_server_that_is_not_there_says_so(cluster: StorageCluster) -> None:
    with HttpQueueServer(cluster=cluster) as gone:
        port = gone.port
    with pytest.raises(ConnectionLost):
        HttpQueue("127.0.0.1", port, "prompts", cluster=cluster).push(1)


def test_only_a_reader_of_the_servers_cluster_may_use_it(server: HttpQueueServer, tmp_path: Path) -> None:
    server.new_queue("prompts").push("secret")
    with StorageCluster(str(tmp_path / "other")) as other:
        with pytest.raises(subprocess.CalledProcessError) as refused:
            elsewhere(HttpQueue("127.0.0.1", server.port, "prompts", cluster=other))
    assert "NotAuthentic" in refused.value.stderr
    assert server.new_queue("prompts").size() == 1


@pytest.mark.parametrize("name", ["a/b", "..", "", "a.b"])
def test_names_that_cannot_be(server: HttpQueueServer, name: str) -> None:
    with pytest.raises(InvalidInput):
        server.new_queue(name)


def test_a_queue_that_the_server_does_not_have(server: HttpQueueServer) -> None:
    with pytest.raises(QueueNotFound, match=r"no queue 'nope'; create it there: new_queue\('nope'\)"):
        HttpQueue("127.0.0.1", server.port, "nope", cluster=server._cluster).pop()


def test_a_queue_of_that_name_has_something_else_behind_it(server: HttpQueueServer, tmp_path: Path) -> None:
    server.new_queue("kept", FileQueue(tmp_path / "a"))
    server.new_queue("kept", FileQueue(tmp_path / "a"))
    for other in (FileQueue[int](tmp_path / "b"), MemoryQueue[int]()):
        with pytest.raises(InvalidInput, match="'kept' already serves FileQueue"):
            server.new_queue("kept", other)


@pytest.mark.parametrize("url", ["localhost", "http://localhost", ":8080", "https://localhost:8080"])
def test_addresses_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidInput, match="http://host:port"):
        HttpQueue(url, "prompts")
