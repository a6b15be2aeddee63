"""A machine as its provider lists it, which the records are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ListedState(StrEnum):
    """What a provider says of a machine that it lists: `ListedMachine.state`."""

    WAITING = "waiting"
    """Asked for; there is no capacity for it yet."""
    CREATING = "creating"
    """It is being made."""
    READY = "ready"
    ENDING = "ending"
    """It is being deleted."""
    LOST = "lost"
    """Preempted, failed, stopped or repaired: it will have no agent again, and must be deleted."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine of this cluster as its provider lists it.

    Attributes:
        pool, name: of `MachineRecord`, from its labels.
        zone: where it is.
        billed: it costs money, as the provider bills it.
        batch: that of its request, from its labels.
        error: the provider's own words, if it says why it is lost or waits.
        error_kind: as `ZoneAnswer.kind`, if an error is one; "" if it is none.
    """

    pool: str
    name: str
    zone: str
    state: ListedState
    batch: str = ""
    operation: str = ""
    error: str = ""
    error_kind: str = ""
    billed: bool = True
