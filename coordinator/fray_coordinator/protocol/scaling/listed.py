"""Machines as their provider lists them. The scaler compares its records with these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ListedState(StrEnum):
    """What a provider says about a machine in its list: `ListedMachine.state`."""

    WAITING = "waiting"
    """It was asked for, and there is no capacity for it yet."""
    CREATING = "creating"
    """It is being made."""
    READY = "ready"
    ENDING = "ending"
    """It is being deleted."""
    LOST = "lost"
    """Preempted, failed, stopped or repaired: it will have no agent again, and must be deleted."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine of this cluster in its provider's list.

    Attributes:
        pool, name: those of `MachineRecord`, from the machine's labels.
        zone: where it is.
        billed: the provider bills it.
        batch: the batch of its request, from its labels.
        copy_of: the machine that a repeated request made once more, as this one; "" if it is no such copy.
        error: the provider's own words if they say why it is lost or waits.
        error_kind: the kind of the error, as in `ZoneAnswer.kind`; "" if there is no error.
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
    copy_of: str = ""
