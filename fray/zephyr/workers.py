"""The jobs that work on an execution's queue: as many as there is work for, each started again when it has ended."""

from __future__ import annotations

import time
from dataclasses import replace

from fray.client.jobs import JobHandle
from fray.client.storage import StorageClient
from fray.cluster.storage import StorageCluster
from fray.types import Entrypoint, JobRequest, JobStatus, ResourceConfig
from fray.zephyr.run import Run
from fray.zephyr.worker import work

LOOKS_PER_SECOND = 10
"""Workers that are looked at in a second, whatever their number."""

FAILURES = 3
"""Times that each worker may fail, on average, while no shard is done; a shard that kills its workers is told apart."""

_OFTEN = 1.0


class Workers:
    """Submitted by name, so that a driver that is started again goes on with those that run.

    Args:
        most: how many there may be.
        resources: of each.
    """

    def __init__(self, cluster: StorageCluster, run: Run, most: int, resources: ResourceConfig) -> None:
        self._client = StorageClient(cluster)
        self._most = most
        self._request = JobRequest(
            name=run.name,
            namespace=run.namespace,
            entrypoint=Entrypoint.from_callable(work, (run,)),
            resources=resources,
            grace=5.0,
        )
        self._jobs: dict[int, JobHandle] = {}
        self._look_after = 0.0
        self._failures = 0

    def progressed(self) -> None:
        """A shard was done: that workers have failed does not matter."""
        self._failures = 0

    def keep(self, shards: int) -> bool:
        """See to it that there are workers for so many shards; whether it was time to look.

        Raises:
            JobFailed: workers fail again and again, and no shard is done.
        """
        wanted = min(self._most, shards)
        if time.monotonic() < self._look_after and wanted <= len(self._jobs):
            return False
        for number in range(wanted):
            status = self._jobs[number].status() if number in self._jobs else JobStatus.STOPPED
            if status is JobStatus.FAILED:
                self._note_failure(self._jobs[number], FAILURES * (wanted + 1))
            if status.finished():
                self._jobs[number] = self._submit(number)
        self._look_after = time.monotonic() + max(_OFTEN, len(self._jobs) / LOOKS_PER_SECOND)
        return True

    def _note_failure(self, job: JobHandle, limit: int) -> None:
        self._failures += 1
        if self._failures >= limit:
            job.wait()

    def _submit(self, number: int) -> JobHandle:
        return self._client.submit(replace(self._request, name=f"{self._request.name}-worker-{number}"))

    def end(self) -> None:
        """Ask all of them to end."""
        for job in self._jobs.values():
            job.terminate()
