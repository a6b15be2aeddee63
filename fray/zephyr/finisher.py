"""Finished shards are made durable in the background, many at a time, while the next one runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from fray.cluster.storage import StorageCluster
from fray.queue import FileQueue, Lease, UnknownLease
from fray.zephyr.run import Run, Shard
from fray_coordinator import outcomes
from fray_layouts.tasks import Outcome

Finished = tuple[Lease[Shard], Outcome]


class Finisher:
    """Writes outcomes, then completes their leases. What it cannot write comes back when its leases run out."""

    def __init__(self, cluster: StorageCluster, run: Run, queue: FileQueue[Shard]) -> None:
        self._cluster = cluster
        self._run = run
        self._queue = queue
        self._waiting: SimpleQueue[Finished] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fray-zephyr-finisher")
        self._last: Future[None] | None = None

    def finish(self, lease: Lease[Shard], outcome: Outcome) -> None:
        """Take over a shard. Raises what went wrong with an earlier one."""
        if self._last is not None and self._last.done():
            self._last.result()
        self._waiting.put((lease, outcome))
        self._last = self._thread.submit(self._write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown()

    def _write(self) -> None:
        """All that waits; the calls for those that an earlier one has taken find nothing."""
        batch: list[Finished] = []
        with suppress(Empty):
            while True:
                batch.append(self._waiting.get_nowait())
        if not batch:
            return
        self._cluster.run(lambda core: outcomes.write(core, self._run.tasks, [outcome for _, outcome in batch]))
        with suppress(UnknownLease):  # another took one over while this process was frozen; it will write the same
            self._queue.done([lease for lease, _ in batch])
