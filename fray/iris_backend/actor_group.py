"""A group of actors on Iris, each a job of its own."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, TypeVar

from fray import sync
from fray.actor.group import ActorGroup
from fray.cluster.iris.cluster import IrisCluster
from fray.cluster.job_handle import JobHandle
from fray.display import MAX_ROWS, ShownTable
from fray.errors import ActorUnavailableError, JobFailed
from fray.iris_backend.actor_address import IrisActorAddress
from fray.iris_backend.actor_handle import IrisActorHandle
from fray.types import JobStatus
from fray.wait_line import wait_telling

T = TypeVar("T")

_PAUSE = 0.2
"""Seconds between two looks at the endpoints of a group that is waited for."""


class IrisActorGroup(ActorGroup[T]):
    """The actors "<name>-0", "<name>-1" ... on Iris. Pickles as their addresses."""

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

    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        ready: list[int] = []

        def are_ready(within: float) -> bool:
            nonlocal ready
            until = time.monotonic() + within
            while len(ready := self._ready()) < wanted:
                self._check_living(wanted)
                if (left := until - time.monotonic()) <= 0:
                    return False
                time.sleep(min(_PAUSE, left))
            return True

        def tell() -> str:
            return f"{len(ready)} of {wanted} actors of {self._name!r} serve calls"

        if not wait_telling(are_ready, timeout, tell):
            raise TimeoutError(f"{tell()} after {timeout:g} s")
        return ready[:wanted]

    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]:
        return await sync.in_thread(partial(self._wait_ready, wanted, timeout))

    def _check_living(self, wanted: int) -> None:
        """Raise ActorUnavailableError: so many have ended that there never will be enough."""
        infos = [self._cluster.poll(address.job) for address in self._addresses]
        living = [info for info in infos if not info.status.finished()]
        if len(living) < wanted:
            ended = next(info for info in infos if info.status.finished())
            can = f"only {len(living)} of the {wanted} actors of {self._name!r} that are wanted can still come"
            raise ActorUnavailableError(f"{can}: {JobFailed.of(ended)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._name, self._addresses)

    def _shown(self) -> ShownTable:
        infos = [self._cluster.poll(address.job) for address in self._addresses[:MAX_ROWS]]
        rows = [(info.name, info.status.value, info.error_message or "") for info in infos]
        title = f"{len(self._addresses)} actors of {self._name}"
        return ShownTable(title, rows, ("actor", "status", "reason"), len(self._addresses) - len(rows))


def _loaded(name: str, addresses: list[IrisActorAddress]) -> IrisActorGroup[Any]:
    return IrisActorGroup(IrisCluster(addresses[0].root), name, addresses)
