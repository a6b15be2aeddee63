"""The interface of all providers of machines: list, create and delete, each idempotent by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fray_coordinator.protocol.scaling.listed import ListedMachine
from fray_layouts.errors import FrayError
from fray_layouts.records import ProvisioningSpec


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """Machines that are to be made by one request, all or none: one, or the slices of a gang.

    Attributes:
        pool: whose machines they are.
        names: of the machines; the first is that of the batch.
        zone: where to make them.
        spec: how.
        root: URL of the cluster that their agents join.
        hosts: of each.
        labels: of their agents.
    """

    pool: str
    names: Sequence[str]
    zone: str
    spec: ProvisioningSpec
    root: str
    hosts: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)


class ProviderError(FrayError):
    """A provider's refusal or failure; the text is its own words and what to do.

    Attributes:
        kind: that of `ZoneAnswer`: "stockout" (no capacity there now), "quota" (the project may have no more), "denied"
            (a right or credentials are missing), "invalid" (the request can never succeed) or "unavailable" (no
            answer: whether the call was carried out is not known).
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Provider(Protocol):
    """Makes the machines of one pool. Calls may be repeated, by this process and by others at once.

    All methods raise ProviderError. After "unavailable" nobody knows whether a call was carried out: the next `list`
    tells.
    """

    async def list(self) -> Sequence[ListedMachine]:
        """All machines that carry the labels of this cluster and pool, in every zone where it may have some.

        One that was created before the call began is listed, or its `create` is not known to have been carried out.
        """
        ...

    async def create(self, request: MachineRequest) -> str:
        """Ask for machines; the provider's name of the operation, "" if it has none. Those that exist stay as they are.

        It returns as soon as the provider has taken the request: `list` tells what becomes of it.
        """
        ...

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        """Ask to remove a machine; one that is not there is no error. The others of its batch stay."""
        ...

    async def check(self) -> Sequence[ProviderError]:
        """All that keeps machines from being made, as far as the provider says before it is asked for one."""
        ...

    async def close(self) -> None:
        """Release connections. Machines stay."""
        ...
