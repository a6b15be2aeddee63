"""What is in flight at one consumer: the segments that it claimed, and the items that it handed out."""

from __future__ import annotations

from dataclasses import dataclass, field

from fray_coordinator.queue.errors import UnknownLease
from fray_coordinator.queue.held_segment import HeldSegment
from fray_coordinator.queue.poison_isolation import HandedOut


@dataclass(eq=False, slots=True)
class Delivery:
    """One item in somebody's hands.

    Attributes:
        serial: tells apart what one consumer handed out.
        number: which delivery of this item it is, counted from 1.
        taken_at: when it was handed out, storage's clock.
        body, encoding: the item.
    """

    held: HeldSegment
    item: int
    serial: int
    number: int
    taken_at: float
    body: bytes = field(repr=False)
    encoding: str

    @property
    def id(self) -> str:
        return f"{self.held.segment}/{self.item}/{self.held.owner}/{self.serial}"

    @property
    def remaining(self) -> float:
        """Seconds until others may take the item over."""
        return self.held.remaining


class InFlight:
    """The segments and items of one consumer.

    Attributes:
        held: the segments that are claimed, by name.
        stocked: those of them that may have items to hand out.
        out: what is handed out, by lease id.
    """

    def __init__(self) -> None:
        self.held: dict[str, HeldSegment] = {}
        self.stocked: dict[str, HeldSegment] = {}
        self.out: dict[str, Delivery] = {}

    def delivery(self, lease: str) -> Delivery:
        """What is out under this id. Raises UnknownLease."""
        if lease not in self.out:
            raise UnknownLease(lease)
        return self.out[lease]

    def put_out(self, delivery: Delivery, out: HandedOut) -> None:
        """The item is out after all: its end was not written."""
        out.gate.put(out)
        delivery.held.out[delivery.item] = out
        self.out[delivery.id] = delivery

    def take_out(self, delivery: Delivery) -> HandedOut | None:
        """The item is no longer out under its lease id; what `put_out` needs to undo that."""
        self.out.pop(delivery.id, None)
        return self.leave(delivery.held, delivery.item)

    def leave(self, held: HeldSegment, item: int) -> HandedOut | None:
        """The item is no longer in its process's hands, if it was."""
        out = held.out.pop(item, None)
        if out is not None:
            out.gate.leave(out)
        return out

    def hold(self, held: HeldSegment) -> None:
        self.held[held.segment] = held
        self.stocked[held.segment] = held

    def forget(self, held: HeldSegment) -> None:
        """The segment is finished or given back."""
        self.stocked.pop(held.segment, None)
        if self.held.get(held.segment) is held:
            del self.held[held.segment]

    def drop(self, held: HeldSegment) -> None:
        """The claim is lost: nothing that is out under it counts any more."""
        held.lost = True
        self.forget(held)
        for delivery in [delivery for delivery in self.out.values() if delivery.held is held]:
            self.take_out(delivery)
        for item in list(held.out):
            self.leave(held, item)
