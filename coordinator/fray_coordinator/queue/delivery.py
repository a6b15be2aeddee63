"""An item on its way through a queue: encoded by a producer, delivered to a consumer under a lease."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """An item as bytes. encoding: how to read them, "pickle" or "json"."""

    body: bytes
    encoding: str = "pickle"


@dataclass(frozen=True, slots=True)
class Delivery:
    """An item in the hands of one consumer, from its delivery until its lease ends.

    Attributes:
        id: of the lease; the item's next delivery has another.
        number: which delivery of the item it is, counted from 1.
        taken_at: when the item was handed out; seconds since the epoch, storage's clock.
        deadline: when others may take the item over, on the same clock.
    """

    id: str
    item: EncodedItem = field(repr=False)
    number: int
    taken_at: float
    deadline: float
