"""The base class of clusters on Ray and Iris. It refuses the methods that need storage, with a remedy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fray.cluster.api import Cluster
from fray.cluster.arguments import checked_id, checked_requests
from fray.cluster.job_info import raise_first_failure
from fray.errors import NoOutputs
from fray.types import (
    Duration,
    JobGroupConfig,
    JobId,
    JobInfo,
    JobRequest,
    ReservationConfig,
    ReservationId,
    ReservationInfo,
)
from fray_coordinator.jobs.logs import LogLine
from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from fray.cluster.actor_metadata import Metadata


class ClusterWithoutStorage(Cluster):
    """A cluster that launches jobs one by one and keeps nothing in storage, as on Ray and Iris."""

    _scheduler: str
    """Name of the system that runs the jobs, for messages."""

    @property
    def metadata(self) -> Metadata:
        self._refuse("announced actors")

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        checked = checked_requests(requests)
        for request in checked:
            self._check(request)
        return [self.launch(request) for request in checked]

    def launch_group(
        self, requests: Sequence[JobRequest], group: JobGroupConfig, reservation_id: str | None = None
    ) -> list[JobId]:
        raise InvalidInput(
            "group", group, f"{self._scheduler} starts together only replicas of one job: JobRequest(replicas=...)"
        )

    def create_reservation(self, config: ReservationConfig) -> ReservationId:
        self._refuse("reservations")

    def get_reservation(self, reservation_id: str) -> ReservationInfo:
        self._refuse("reservations")

    def renew_reservation(self, reservation_id: str, ttl_seconds: Duration | None = None) -> ReservationInfo:
        self._refuse("reservations")

    def release_reservation(self, reservation_id: str) -> None:
        self._refuse("reservations")

    def pull(self, job_id: str, target: str | os.PathLike[str], path: str = "") -> list[Path]:
        remedy = f"{self._scheduler} keeps no files; write them to storage instead"
        raise NoOutputs(f"job {checked_id(job_id)} has no outputs: {remedy}")

    def close(self) -> None:
        """Do nothing: the process stays connected."""

    def _last_lines(self, job_id: str, count: int) -> Sequence[LogLine]:
        lines = list(self.logs(job_id))
        return lines[-count:] if count else lines

    def _poll_until_ended(
        self, ids: Sequence[str], raise_on_failure: bool, timeout: float | None, pauses: Iterator[float]
    ) -> list[JobInfo]:
        """`wait` of a cluster that has to poll each job. pauses: seconds between two polls."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            infos = [self.poll(job) for job in ids]
            if raise_on_failure:
                raise_first_failure(infos)
            waiting = [info for info in infos if not info.status.finished()]
            if not waiting:
                return infos
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                late = f"{len(waiting)} of {len(ids)} jobs have not ended after {timeout:g} s"
                raise TimeoutError(f"{late}; {waiting[0].job_id} is {waiting[0].status}")
            pause = next(pauses)
            time.sleep(pause if left is None else min(pause, left))

    def _check(self, request: JobRequest) -> None:
        """Raise InvalidInput if this cluster does not support the request."""

    def _refuse(self, what: str) -> NoReturn:
        remedy = f"only a cluster in storage has {what}; open one: StorageCluster(root)"
        raise InvalidInput("cluster", self.root, remedy)
