"""Actor classes for the tests, and clusters to run them on.

The classes are pickled by value: agents do not have the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from fray import sync
from fray.actor import ActorGroup, current_actor
from fray.client import StorageClient
from fray.cluster import Cluster, LocalCluster, ResourceConfig, StorageCluster, current_cluster
from fray.rpc import ActorServer
from fray.types import ActorConfig
from fray_coordinator.core import open_core
from fray_layouts.records import ClusterSettings
from tests.support.agents import AgentProcess, agents, on_cluster

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Serve = Callable[..., ActorServer]
"""The fixture `serve` of the integration tests: starts a server of the actors that it gets by name."""

SMALL = ResourceConfig(cpu=0.1, disk="1m")


def create_group(cluster: Cluster, cls: type, *args: Any, name: str, count: int = 1, **config: Any) -> ActorGroup[Any]:
    """Small actors. config: fields of `ActorConfig`."""
    client, chosen = StorageClient(cluster), ActorConfig(**config)
    return client.create_actor_group(cls, *args, name=name, count=count, resources=SMALL, actor_config=chosen)


class Counter:
    """An actor that counts, and says where it runs."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def fail(self, text: str) -> None:
        raise LookupError(text)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def extend(self, items: list[int]) -> list[int]:
        items.append(0)
        return items


class Diary:
    """An actor that notes texts in the order in which they arrive."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def note(self, value: Any, wait: float = 0.0) -> None:
        time.sleep(wait)
        self.notes.append(value)

    def read(self) -> list[Any]:
        return self.notes

    def pid(self) -> int:
        return os.getpid()


class Meeting:
    """`arrive` returns only once `size` calls are inside at once."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)

    def arrive(self) -> int:
        return self.barrier.wait(200)


class Async:
    """Coroutines, and generators of both kinds."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def wait(self) -> str:
        await self.opened.wait()
        return "open"

    async def open(self) -> None:
        self.opened.set()

    def numbers(self, end: int) -> Iterator[int]:
        yield from range(end)

    async def later(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            await asyncio.sleep(0)
            yield number


class Self:
    """An actor that returns its own name and handle; its `__init__` starts a thread that calls it."""

    def __init__(self) -> None:
        mine = current_actor()
        self.before = (mine.index, mine.group_name)
        self.called = threading.Event()
        handle = mine.handle
        threading.Thread(target=lambda: handle.call(), daemon=True).start()

    def call(self) -> None:
        self.called.set()

    def was_called(self) -> bool:
        return self.called.is_set()

    def here(self) -> tuple[int, str, bool]:
        mine = current_actor()
        return mine.index, mine.group_name, (mine.index, mine.group_name) == self.before

    def handle(self) -> Any:
        return current_actor().handle

    def fail(self) -> None:
        current_actor().fail(LookupError("it is not here"))

    def until_shutdown(self) -> str:
        current_actor().shutdown_event.wait(200)
        time.sleep(0.3)  # still within the grace
        return "flushed"

    def pid(self) -> int:
        return os.getpid()

    def cluster(self) -> tuple[str, str]:
        cluster = current_cluster()
        return cluster.root, cluster.namespace

    def cluster_in_a_process(self) -> list[str]:
        program = "from fray import current_cluster; c = current_cluster(); print(c.root, c.namespace)"
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()


class Broken:
    """An actor whose constructor raises."""

    def __init__(self) -> None:
        raise LookupError("no such model")


class Holder:
    """An actor whose arguments and results cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken: list[object] = []

    def take(self, *given: object, **named: object) -> int:
        self.taken += [*given, *named.values()]
        return len(self.taken)

    def give(self) -> object:
        return self.lock

    def give_all(self) -> Iterator[object]:
        yield from [self.lock, *self.taken]


@contextlib.contextmanager
def storage(directory: Path, count: int = 2, cores: float = 4) -> Iterator[tuple[StorageCluster, list[AgentProcess]]]:
    """A cluster under a local root with agents in processes of their own."""
    root = directory / "root"

    async def make(core: Any) -> None:
        """Write the settings of `on_cluster` to the root."""

    on_cluster(root, make)
    with agents(str(root), directory / "work", count, cores) as running, StorageCluster(str(root)) as cluster:
        yield cluster, running


@contextlib.contextmanager
def cluster_of_kind(kind: str, directory: Path) -> Iterator[StorageCluster]:
    """A cluster whose jobs run in "threads", in "processes", on agents ("storage"), or not at all ("alone")."""
    match kind:
        case "threads":
            opened: contextlib.AbstractContextManager[StorageCluster] = LocalCluster(use_processes=False)
        case "processes":
            opened = LocalCluster(max_workers=4)
        case "alone":
            opened = StorageCluster(str(directory / "root"))
        case _:
            with storage(directory) as (cluster, _):
                yield cluster
            return
    with opened as cluster:
        yield cluster


def cluster_in_memory(namespace: str | None = None) -> StorageCluster:
    """A cluster in this process's memory, without agents. Tests end before a heartbeat, which would be a request."""
    root = f"memory://{uuid.uuid4()}"
    sync.run(open_core(root, ClusterSettings(beat_interval=3600.0)))
    return StorageCluster(root, namespace)
