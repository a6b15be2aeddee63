"""A provider of machines in memory, whose replies may be lost and whose zones may refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_coordinator.core import Core
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_layouts.records import ProvisioningSpec


@dataclass(slots=True)
class MemoryProvider:
    """The machines of one pool.

    Attributes:
        machines: by name.
        asked: the calls so far: the verb and its subject.
        refuse: by zone, the kind of error that it raises.
        lost: how many creates are executed although their replies are lost.
        silent: whether `list` does not answer.
        full: zones in which requests wait.
        slow: seconds that `list` takes.
        denied: whether `list` is not allowed.
        keeps: whether `delete` is not allowed.
        closed: whether it must not be called any more.
    """

    machines: dict[str, ListedMachine] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    refuse: dict[str, str] = field(default_factory=dict)
    lost: int = 0
    silent: bool = False
    full: set[str] = field(default_factory=set)
    slow: float = 0.0
    denied: bool = False
    keeps: bool = False
    closed: bool = False

    async def open(self, core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        """Like `open_provider`, for tests of one pool."""
        return self

    async def list(self) -> Sequence[ListedMachine]:
        """All machines."""
        await asyncio.sleep(self.slow)
        if self.silent:
            raise ProviderError("unavailable", "no answer")
        if self.denied:
            raise ProviderError("denied", "the role machines.list is missing")
        return list(self.machines.values())

    async def create(self, request: MachineRequest) -> str:
        """Make machines, which are ready at once, or wait."""
        await asyncio.sleep(0)
        self.asked.append(("create", request.zone))
        if request.zone in self.refuse:
            raise ProviderError(self.refuse[request.zone], f"nothing left in {request.zone}")
        for name in request.names:
            state = ListedState.WAITING if request.zone in self.full else ListedState.READY
            made = ListedMachine(request.pool, name, request.zone, state, batch=request.names[0])
            self.machines.setdefault(name, made)
        if self.lost:
            self.lost -= 1
            raise ProviderError("unavailable", "the reply is lost")
        return "operation"

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        """Remove a machine."""
        await asyncio.sleep(0)
        self.asked.append(("delete", name))
        if self.keeps:
            raise ProviderError("denied", "the role machines.delete is missing")
        self.machines.pop(name, None)

    async def check(self) -> Sequence[ProviderError]:
        """Find no problem."""
        return []

    async def close(self) -> None:
        """Keep the machines."""
        self.closed = True
