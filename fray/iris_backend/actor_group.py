"""Groups of actors on Iris, where each actor has a job of its own."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from fray.actor.polled_group import PolledActorGroup
from fray.cluster.iris.cluster import IrisCluster
from fray.cluster.job_handle import JobHandle
from fray.display import MAX_ROWS, ShownTable
from fray.errors import ActorUnavailableError, JobFailed
from fray.iris_backend.actor_address import IrisActorAddress
from fray.iris_backend.actor_handle import IrisActorHandle
from fray.types import JobStatus

T = TypeVar("T")

_PAUSE = 0.2
"""Seconds between two polls of a group's endpoints during a wait: short against the start of a process."""


class IrisActorGroup(PolledActorGroup[T]):
    """A group of the actors "<name>-0", "<name>-1" ... on Iris. Pickles as their addresses."""

    def __init__(self, cluster: IrisCluster, name: str, addresses: list[IrisActorAddress]) -> None:
        super().__init__(name, [IrisActorHandle[T](cluster, address) for address in addresses])
        self._cluster = cluster
        self._addresses = addresses

    @property
    def jobs(self) -> list[JobHandle]:
        return [JobHandle(self._cluster, address.job) for address in self._addresses]

    def statuses(self) -> list[JobStatus]:
        return [job.status() for job in self.jobs]

    def _ready(self) -> list[int]:
        return [number for number, address in enumerate(self._addresses) if self._serves(address)]

    def _serves(self, address: IrisActorAddress) -> bool:
        from iris.cluster.types import JobName

        resolver = self._cluster.iris.resolver_for_job(JobName.from_string(address.job))
        return not resolver.resolve(address.endpoint).is_empty

    def _gather(self, ready: set[int], wanted: int, until: float) -> bool:
        while True:
            ready.clear()
            ready.update(self._ready())
            if len(ready) >= wanted:
                return True
            self._check_living(wanted)
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(_PAUSE, left))

    def _check_living(self, wanted: int) -> None:
        """Raise ActorUnavailableError if so many actors have ended that `wanted` can no longer be reached."""
        infos = [self._cluster.poll(address.job) for address in self._addresses]
        living = [info for info in infos if not info.status.finished()]
        if len(living) < wanted:
            ended = next(info for info in infos if info.status.finished())
            raise ActorUnavailableError(self._shortage(len(living), wanted, JobFailed.of(ended)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._name, self._addresses)

    def _shown(self) -> ShownTable:
        infos = [self._cluster.poll(address.job) for address in self._addresses[:MAX_ROWS]]
        rows = [(info.name, info.status.value, info.error_message or "") for info in infos]
        title = f"{len(self._addresses)} actors of {self._name}"
        return ShownTable(title, rows, ("actor", "status", "reason"), len(self._addresses) - len(rows))


def _loaded(name: str, addresses: list[IrisActorAddress]) -> IrisActorGroup[Any]:
    return IrisActorGroup(IrisCluster(addresses[0].root), name, addresses)
