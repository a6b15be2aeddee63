"""What a worker's job does: shard after shard, until there are none."""

from __future__ import annotations

import os
import pickle
import signal
from functools import lru_cache

import cloudpickle

from fray.cluster.current import open_cluster
from fray.cluster.storage import StorageCluster
from fray.queue import Lease
from fray.zephyr.finisher import Finisher
from fray.zephyr.release import InlineRunner, ShardTask
from fray.zephyr.run import ATTEMPTS, Run, Shard
from fray_agents.threads import task_environ
from fray_coordinator.core import Core
from fray_layouts.tasks import Outcome

LEASE = 20.0
"""Seconds until the shard of a worker that vanished goes to another."""

IDLE = 30.0
"""Seconds without a shard after which a worker ends: it holds memory that others could use."""


def work(run: Run) -> None:
    """Take shards from the execution's queue until there are none for a while."""
    if task_environ() is os.environ:
        signal.signal(signal.SIGTERM, lambda number, frame: _leave())
    cluster, queue = open_cluster(run.root), run.queue()
    with Finisher(cluster, run, queue) as finisher:
        while (lease := queue.pop(LEASE, wait=IDLE)) is not None:
            outcome = _outcome(cluster, run, lease.keep())
            if outcome is not None:
                finisher.finish(lease, outcome)


def _leave() -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _outcome(cluster: StorageCluster, run: Run, lease: Lease[Shard]) -> Outcome | None:
    """A shard's result, or what it raised last; None if it is to be tried again."""
    shard = lease.item
    name = f"{shard.stage}/{shard.number}"
    try:
        return Outcome(name, "value", data=_result(cluster, run, shard))
    except SystemExit:
        lease.release(failed=False)
        raise
    except Exception as error:
        if lease.delivery < ATTEMPTS:
            lease.release()
            return None
        return Outcome(name, "error", data=_pickled(error))


def _result(cluster: StorageCluster, run: Run, shard: Shard) -> bytes:
    """The pickled result and counters of a shard."""
    task = _tasks(cluster, shard.tasks)[shard.number]
    return pickle.dumps(new_runner().execute(task, run.chunks, run.name))


def new_runner() -> InlineRunner:
    """Runs shards in this process: it is a process of its own already, and ends with its job."""
    return InlineRunner()


@lru_cache(maxsize=2)
def _tasks(cluster: StorageCluster, key: str) -> list[ShardTask]:
    tasks: list[ShardTask] = pickle.loads(cluster.run(lambda core: _read(core, key)))
    return tasks


async def _read(core: Core, key: str) -> bytes:
    found = await core.store.get(key)
    if found is None:
        raise SystemExit(f"the stage {key} is gone: its execution has ended")
    return found.data


def _pickled(error: Exception) -> bytes:
    """The exception, or one that says the same if it cannot be carried."""
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:  # pickling runs the users' own code, which may raise anything
        data = pickle.dumps(RuntimeError(f"{type(error).__qualname__}: {error}"))
    return data
