"""Groups of actors on Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fray import sync
from fray.actor.group import ActorGroup
from fray.cluster.ray.connection import connected
from fray.display import MAX_ROWS, ShownTable
from fray.errors import ActorUnavailableError, InvalidInput
from fray.ray_backend.actor_handle import RayActorHandle
from fray.ray_backend.actor_states import statuses
from fray.types import JobId, JobStatus
from fray.wait_line import wait_telling

if TYPE_CHECKING:
    from fray.cluster.job_handle import JobHandle

T = TypeVar("T")


class RayActorGroup(ActorGroup[T]):
    """A group of Ray's actors. `statuses` asks each of them; those that do not answer yet are PENDING."""

    def __init__(self, name: str, handles: Sequence[RayActorHandle[T]]) -> None:
        super().__init__(name, handles)
        self._probes = [handle._probe for handle in handles]

    @property
    def jobs(self) -> list[JobHandle]:
        remedy = "actors on Ray are no jobs: statuses() and is_done() tell how they are, shutdown() ends them"
        raise InvalidInput("jobs", self, remedy)

    @property
    def _job_id(self) -> JobId:
        return JobId(str(self._handles[0]))

    def statuses(self) -> list[JobStatus]:
        return statuses(self._probes)

    def _ready(self) -> list[int]:
        return [index for index, status in enumerate(self.statuses()) if status is JobStatus.RUNNING]

    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        ready: set[int] = set()

        def are_ready(within: float) -> bool:
            until = time.monotonic() + within
            while len(ready) < wanted:
                asked = {probe.ask(): index for index, probe in enumerate(self._probes) if index not in ready}
                asked.pop(None, None)
                self._check_living(wanted, len(ready) + len(asked))
                answers, _ = connected().wait(list(asked), timeout=max(until - time.monotonic(), 0))
                if not answers:
                    return False
                ready.update(asked[one] for one in answers if self._probes[asked[one]].status() is JobStatus.RUNNING)
            return True

        def tell() -> str:
            return f"{len(ready)} of {wanted} actors of {self._name!r} serve calls"

        if not wait_telling(are_ready, timeout, tell):
            raise TimeoutError(f"{tell()} after {timeout:g} s")
        if wanted < len(self._probes):
            ready.update(self._ready())  # the first of all that serve are given, not the first that answered
        return sorted(ready)[:wanted]

    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]:
        return await sync.in_thread(lambda: self._wait_ready(wanted, timeout))

    def _check_living(self, wanted: int, living: int) -> None:
        if living < wanted:
            ended = next(probe.ended for probe in self._probes if probe.ended is not None)
            can = f"only {living} of the {wanted} actors of {self._name!r} that are wanted can still come"
            raise ActorUnavailableError(f"{can}: {ended}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RayActorGroup, (self._name, self._handles)

    def _shown(self) -> ShownTable:
        rows = [(repr(handle), status.value) for handle, status in zip(self._handles, self.statuses(), strict=True)]
        title = f"{len(rows)} actors of {self._name}"
        return ShownTable(title, rows[:MAX_ROWS], ("actor", "status"), len(rows[MAX_ROWS:]))
