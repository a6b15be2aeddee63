"""The interface of all providers of machines: list, create and delete, each idempotent by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fray_coordinator.protocol.scaling.view import ListedMachine
from fray_layouts.errors import FrayError
from fray_layouts.records import ProvisioningSpec


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """A request for machines, all or none: one machine, or all slices of a gang.

    Attributes:
        pool: the pool of the machines.
        names: names of the machines; the first is also the name of the batch.
        zone: the zone in which to create them.
        spec: the pool's settings for machines.
        root: URL of the cluster that their agents join.
        hosts: number of hosts of each machine.
        labels: labels of their agents.
    """

    pool: str
    names: Sequence[str]
    zone: str
    spec: ProvisioningSpec
    root: str
    hosts: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)


class ProviderError(FrayError):
    """A provider's refusal or failure; the text is the provider's own, with a remedy.

    Attributes:
        kind: that of `ZoneAnswer`: "stockout" (no capacity there now), "quota" (the project may have no more), "denied"
            (a right or credentials are missing), "invalid" (the request can never succeed) or "unavailable" (no
            answer: it is not known whether the call was carried out).
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Provider(Protocol):
    """Creates the machines of one pool. Calls may be repeated, also by several processes at once.

    All methods raise ProviderError. After "unavailable" it is not known whether a call was carried out; the next `list`
    shows it.
    """

    async def list(self) -> Sequence[ListedMachine]:
        """All machines with the labels of this cluster and pool, in every zone where there may be some.

        If a machine that was created before this call is not listed, its `create` has not returned successfully.
        """
        ...

    async def create(self, request: MachineRequest) -> str:
        """Order machines; returns the provider's name of the operation, "" if none. Existing machines are not changed.

        It returns as soon as the provider has accepted the request; `list` shows its progress.
        """
        ...

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        """Order the removal of a machine; a missing machine is no error. Other machines of its batch stay."""
        ...

    async def check(self) -> Sequence[ProviderError]:
        """The problems that would keep machines from being created, as far as the provider can tell in advance."""
        ...

    async def close(self) -> None:
        """Release connections. Machines stay."""
        ...
