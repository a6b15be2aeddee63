"""How modules below `StorageCluster` run services of `fray_coordinator` on it."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from fray_coordinator.core import Core

T = TypeVar("T")


class RunService(Protocol):
    """Runs a service on an open cluster and returns its result: `StorageCluster.run`."""

    def __call__(self, work: Callable[[Core], Awaitable[T]], /) -> T: ...
