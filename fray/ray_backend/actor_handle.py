"""Handles of actors on Ray."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

from fray.actor.handle import ActorHandle
from fray.actor.hosting import GRACE
from fray.cluster.ray.connection import connected
from fray.display import ShownTable
from fray.errors import ActorUnavailableError
from fray.ray_backend.actor_address import RayActorAddress
from fray.ray_backend.actor_calls import RayCaller
from fray.ray_backend.actor_states import ActorProbe, statuses
from fray.types import JobStatus
from fray_agents.threads import new_thread, nobody_waits

T = TypeVar("T")


class RayActorHandle(ActorHandle[T]):
    """A handle of an actor on Ray. Pickles as its address."""

    def __init__(self, address: RayActorAddress, actor: Any = None) -> None:
        self._address = address
        self._own_caller = RayCaller(address, actor)
        self._probe = ActorProbe(self._own_caller)

    def _caller(self) -> RayCaller:
        return self._own_caller

    def _shut_down(self, why: str) -> None:
        try:
            actor, idle = self._own_caller.actor(), self._own_caller.control("stop")
        except ActorUnavailableError:
            return
        self._own_caller.end(why)
        ray = connected(self._address.root)

        def end() -> None:
            with suppress(Exception, SystemExit):  # Ray raises either if this process disconnects from it meanwhile
                ray.wait([idle], timeout=GRACE)
                ray.kill(actor)

        new_thread(end, "fray-stop", nobody_waits, daemon=not self._address.detached).start()

    def _kill(self, why: str) -> None:
        """End the actor at once, even during calls. Its name is free."""
        with suppress(ActorUnavailableError):
            connected(self._address.root).kill(self._own_caller.actor())
        self._own_caller.end(why)

    def _status(self) -> JobStatus:
        return statuses([self._probe])[0]

    def _identity(self) -> RayActorAddress:
        return self._address

    def __reduce__(self) -> tuple[Any, ...]:
        return RayActorHandle, (self._address,)

    def __repr__(self) -> str:
        return f"ActorHandle({self._address.name!r}, {self._address.ray_name!r})"

    def _shown(self) -> ShownTable:
        return ShownTable.of(f"{self._address}", {"status": self._status().value})
