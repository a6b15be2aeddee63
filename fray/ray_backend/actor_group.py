"""Groups of actors on Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fray.actor.polled_group import PolledActorGroup
from fray.cluster.ray.connection import connected
from fray.display import MAX_ROWS, ShownTable
from fray.errors import ActorUnavailableError, InvalidInput
from fray.ray_backend.actor_handle import RayActorHandle
from fray.ray_backend.actor_states import statuses
from fray.types import JobId, JobStatus

if TYPE_CHECKING:
    from fray.cluster.job_handle import JobHandle

T = TypeVar("T")


class RayActorGroup(PolledActorGroup[T]):
    """A group of Ray actors. `statuses` asks each of them; those that do not answer yet are PENDING."""

    def __init__(self, name: str, handles: Sequence[RayActorHandle[T]]) -> None:
        super().__init__(name, handles)
        self._probes = [handle._probe for handle in handles]

    @property
    def jobs(self) -> list[JobHandle]:
        remedy = "actors on Ray are not jobs: use statuses() and is_done() to see how they are, shutdown() to end them"
        raise InvalidInput("jobs", self, remedy)

    @property
    def _job_id(self) -> JobId:
        return JobId(str(self._handles[0]))

    def statuses(self) -> list[JobStatus]:
        return statuses(self._probes)

    def _ready(self) -> list[int]:
        return [index for index, status in enumerate(self.statuses()) if status is JobStatus.RUNNING]

    def _gather(self, ready: set[int], wanted: int, until: float) -> bool:
        while len(ready) < wanted:
            asked = {probe.ask(): index for index, probe in enumerate(self._probes) if index not in ready}
            asked.pop(None, None)
            if (living := len(ready) + len(asked)) < wanted:
                ended = next(probe.ended for probe in self._probes if probe.ended is not None)
                raise ActorUnavailableError(self._shortage(living, wanted, ended))
            answers, _ = connected().wait(list(asked), timeout=max(until - time.monotonic(), 0))
            if not answers:
                return False
            ready.update(asked[one] for one in answers if self._probes[asked[one]].status() is JobStatus.RUNNING)
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return RayActorGroup, (self._name, self._handles)

    def _shown(self) -> ShownTable:
        rows = [(repr(handle), status.value) for handle, status in zip(self._handles, self.statuses(), strict=True)]
        title = f"{len(rows)} actors of {self._name}"
        return ShownTable(title, rows[:MAX_ROWS], ("actor", "status"), len(rows[MAX_ROWS:]))
