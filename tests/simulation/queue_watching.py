"""Observes a simulated queue, each delivered item and each write, and checks what must never happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fray_coordinator.queue.consumer import Consumer
from fray_coordinator.queue.delivery import Delivery
from fray_coordinator.queue.held_segment import HeldSegment
from fray_coordinator.store.interface import Object
from fray_layouts import codec
from fray_layouts.queue_keys import QueueKeys, SegmentName
from fray_layouts.queue_records import QueueLease, Receipt, decode_segment
from tests.simulation.invariants import Broken
from tests.simulation.loop import OWNER, Participant
from tests.simulation.queue_strangers import QueueStrangers
from tests.simulation.stage import Stage

NAMES = QueueKeys("q/")
DEAD = NAMES.dead_letters


@dataclass(slots=True)
class Known:
    """The world's knowledge of the items, by payload and by place (segment and number).

    Attributes:
        pushed: items whose push returned. maybe: items whose push was given up.
        acked: places whose `done` returned.
        ended: payloads that are done, by a lease, or are dead letters.
        content: payloads of each segment.
        excused: payloads that were out when their consumer crashed, froze or was slow: they may look like killers.
    """

    pushed: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    acked: set[tuple[str, int]] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    content: dict[str, list[str]] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)


class QueueWatch(Stage):
    """The watched part of a simulated queue."""

    def __init__(self, seed: int, label: str) -> None:
        super().__init__(seed, label)
        self.consumers: dict[Participant, Consumer] = {}
        self.known = Known()
        self.strangers = QueueStrangers(self, NAMES)

    def handed_out(self, segment: HeldSegment, delivery: Delivery) -> None:
        """Check an item that is handed out now."""
        place, payload = place_of(delivery), delivery.item.body.decode()
        self.note(OWNER.get().name, "gets", f"{payload} {delivery.id}")
        consumer = self.consumers[OWNER.get()]
        holds = {held for held in consumer.held.values() if not held.lease.expired} | {segment}
        suspects = [out.suspect for held in holds for out in held.out.values()]
        if any(suspects) and len(suspects) > 1:
            self.is_broken(Broken("a suspect is alone in its process", f"{payload} is out with others", payload))
        if place in self.known.acked:
            self.is_broken(Broken("an acknowledged item never comes back", f"{payload} came back", payload))
        if payload not in self.known.maybe:
            self.is_broken(Broken("only what was pushed is delivered", payload, payload))

    def _on_write(self, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
        self.note(sender.name, "deletes" if after is None else "changes" if before else "creates", key)
        if sender is self.strangers.owner and self.is_odd(key):
            return
        if (found := DEAD.parse(key)) and key.startswith(DEAD.segments) and not found[1] and after is not None:
            payload = decode_segment(after.data)[1][0].decode()
            self.known.dead.add(payload)
            self.known.ended.add(payload)
        elif (found := NAMES.parse(key)) and key.startswith(NAMES.segments) and after is not None:
            if not found[1]:
                self.known.content[found[0]] = [body.decode() for body in decode_segment(after.data)[1]]
            elif before is not None:
                self._lease_changed(found[0], before, after)
        elif found and key.startswith(NAMES.segments) and not found[1]:
            self._deleted(key, found[0])
        elif NAMES.receipt_time(key) is not None and after is not None:
            self._receipted(codec.decode(after.data, Receipt).record)

    def _receipted(self, receipt: Receipt) -> None:
        for owner, segments in receipt.done.items():
            for segment in segments:
                lease = self.storage.contents.objects.get(NAMES.lease(segment))
                if lease is not None and codec.decode(lease.data, QueueLease).record.owner == owner:
                    self.known.ended.update(self.known.content[segment])

    def _deleted(self, key: str, segment: str) -> None:
        lost = [payload for payload in self.known.content.get(segment, []) if payload not in self.known.ended]
        if lost and not self.is_odd(key):
            self.is_broken(Broken("nothing is deleted before it is done", f"{segment}: {lost}", segment))

    def _lease_changed(self, segment: str, before: Object, after: Object) -> None:
        if self.is_odd(NAMES.segment(segment)):
            return
        was, now = (codec.decode(o.data, QueueLease).record for o in (before, after))
        for consumer in self.consumers.values():
            for held in consumer.held.values():
                lease = held.lease
                if lease.owner == was.owner != now.owner and now.owner and lease.trusted:
                    self.is_broken(Broken("nobody takes what its holder trusts", segment, segment))
        for item in range(SegmentName.items_of(segment)):
            if _is_done(was, item) and not _is_done(now, item):
                self.is_broken(Broken("what is done stays done", f"{segment}: item {item}", segment))
            if _is_done(now, item):
                self.known.ended.add(self.known.content[segment][item])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch every item that is handed out while the block lasts."""
        real = HeldSegment.hand_out

        def observed(segment: HeldSegment, *given: Any) -> Delivery:
            delivery = real(segment, *given)
            if segment.lease.stored.key.startswith(NAMES.segments):
                self.handed_out(segment, delivery)
            return delivery

        with mock.patch.object(HeldSegment, "hand_out", observed):
            yield

    def is_odd(self, key: str) -> bool:
        """Whether strangers left the object, or it is the lease of such an object."""
        return key in self.strangers.odd or key.removesuffix("~lease") in self.strangers.odd


def place_of(delivery: Delivery) -> tuple[str, int]:
    """(segment, index) of the item."""
    segment, index, *_ = delivery.id.split("/")
    return segment, int(index)


def _is_done(lease: QueueLease, item: int) -> bool:
    return bool(int(lease.done, 16) >> item & 1)
