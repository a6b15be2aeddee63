"""Observes a simulated queue, each delivered item and each write, and checks what must never happen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fray_coordinator.protocol.queue_lease import is_complete
from fray_coordinator.queue.consumer import Consumer
from fray_coordinator.queue.delivery import Delivery, UnknownLease
from fray_coordinator.queue.held_segment import HeldSegment, OutItem, PoisonIsolation
from fray_coordinator.queue.held_segments import HeldSegments
from fray_coordinator.queue.producer import Producer
from fray_coordinator.store.interface import Object
from fray_layouts import codec
from fray_layouts.queue_keys import ItemPlace, QueueKeys, SegmentName
from fray_layouts.queue_records import QueueLease, Receipt, decode_segment
from tests.simulation.invariants import Broken
from tests.simulation.loop import OWNER, Participant
from tests.simulation.queue_strangers import QueueStrangers
from tests.simulation.stage import Stage

NAMES = QueueKeys("q/")
DEAD = NAMES.dead_letters
NOTES = "notes/"
"""The prefix of the objects that say which items were cancelled, as a pool's outcomes do."""


@dataclass(slots=True)
class Known:
    """The world's knowledge of the items, by payload and by place (segment and number).

    Attributes:
        pushed: items whose push returned. maybe: items whose push was given up.
        acked: places whose `done` returned.
        ended: payloads that are done, by a lease, or are dead letters.
        content: payloads of each segment.
        excused: payloads that were out when their consumer crashed, froze or was slow: they may look like killers.
        large: payloads of items that are objects of their own, by key.
        places: payloads that may be cancelled, by place.
        noted: places whose cancellation is noted. cancelled: places that a call said to be cancelled.
        got: places that were handed out.
        purges: purges that some user is to make.
        ending: leases that their users have ended. Until that is written the items are out, but nobody works on them.
    """

    pushed: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    acked: set[ItemPlace] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    content: dict[str, list[str]] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    large: dict[str, str] = field(default_factory=dict)
    places: dict[ItemPlace, str] = field(default_factory=dict)
    noted: set[ItemPlace] = field(default_factory=set)
    cancelled: set[ItemPlace] = field(default_factory=set)
    got: set[ItemPlace] = field(default_factory=set)
    purges: int = 0
    ending: set[str] = field(default_factory=set)


class QueueWatch(Stage):
    """The watched part of a simulated queue."""

    def __init__(self, seed: int, label: str) -> None:
        super().__init__(seed, label)
        self.consumers: dict[Participant, Consumer] = {}
        self.known = Known()
        self.purging = False
        self.strangers = QueueStrangers(self, NAMES)

    def handed_out(self, segment: HeldSegment, delivery: Delivery) -> None:
        """Check an item that is handed out now."""
        place, payload = place_of(delivery.id), delivery.item.body.decode().strip()
        self.note(OWNER.get().name, "gets", f"{payload} {delivery.id}")
        consumer = self.consumers[OWNER.get()]
        holds = {held for held in consumer.held.values() if not (held.lease.expired or held.lease.lost)} | {segment}
        isolation = segment.out[delivery.id].isolation
        here = [item for held in holds for item in held.out.values() if item.isolation is isolation]
        out = {item.id: item.suspect for item in here if item.id not in self.known.ending}
        if any(out.values()) and len(out) > 1:
            self.is_broken(Broken("a suspect is alone in its process", f"{payload} is out with {sorted(out)}", payload))
        if place in self.known.acked:
            self.is_broken(Broken("an acknowledged item never comes back", f"{payload} came back", payload))
        if place in self.known.cancelled:
            self.is_broken(Broken("a cancelled item is never handed out", f"{payload} was handed out", payload))
        self.known.got.add(place)
        if payload not in self.known.maybe:
            self.is_broken(Broken("only what was pushed is delivered", payload, payload))

    def chosen(self, segment: HeldSegment) -> None:
        """Check the segment of an item that is handed out next."""
        for other in self.consumers[OWNER.get()]._segments._stocked.values():
            if other.name < segment.name and other.ready:
                what = f"{segment.name}, though {other.name} has items"
                self.is_broken(Broken("the oldest that a process holds comes first", what, segment.name))

    def _on_write(self, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
        self.note(sender.name, "deletes" if after is None else "changes" if before else "creates", key)
        if sender is self.strangers.owner and self.is_odd(key):
            return
        if (found := DEAD.parse(key)) and key.startswith(DEAD.segments) and not found[1] and after is not None:
            payloads = self._payloads(DEAD, found[0], after.data)
            self.known.dead.update(payloads)
            self.known.ended.update(payloads)
        elif (found := NAMES.parse(key)) and key.startswith(NAMES.segments) and after is not None:
            if not found[1]:
                self.known.content[found[0]] = self._payloads(NAMES, found[0], after.data)
            else:
                self._lease_changed(found[0], before, after)
        elif found and key.startswith(NAMES.segments) and not found[1]:
            self._deleted(key, found[0])
        elif after is not None and key.startswith((NAMES.all_large, DEAD.all_large)):
            self.known.large[key] = after.data.decode().strip()
        elif key.startswith(NOTES) and after is not None:
            self.known.noted.update(filter(None, map(ItemPlace.parse, after.data.decode().split())))
        elif NAMES.receipt_time(key) is not None and after is not None:
            self._receipted(codec.decode(after.data, Receipt).record)

    def _payloads(self, keys: QueueKeys, segment: str, data: bytes) -> list[str]:
        """The payloads of a segment. Those of large items were written before."""
        header, bodies = decode_segment(data)
        return [
            self.known.large.get(keys.large(segment, number), "") if number in header.large else body.decode().strip()
            for number, body in enumerate(bodies)
        ]

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

    def _lease_changed(self, segment: str, before: Object | None, after: Object) -> None:
        if self.is_odd(NAMES.segment(segment)) or segment not in self.known.content:
            return
        was, now = (codec.decode(o.data, QueueLease).record if o else QueueLease() for o in (before, after))
        ends = is_complete(now, SegmentName.items_of(segment))  # by a purge, or as a receipt says
        for consumer in self.consumers.values():
            for held in consumer.held.values():
                lease = held.lease
                if lease.owner == was.owner != now.owner and now.owner and lease.trusted and not ends:
                    self.is_broken(Broken("nobody takes what its holder trusts", segment, segment))
        for item in range(SegmentName.items_of(segment)):
            if _is_done(was, item) and not _is_done(now, item):
                self.is_broken(Broken("what is done stays done", f"{segment}: item {item}", segment))
            if _is_done(now, item) and not self._is_known_to_end(now, ItemPlace(segment, item)):
                what = f"{segment}: item {item} is done, which nobody got"
                self.is_broken(Broken("a cancelled item is noted before it is done", what, segment))
            if _is_done(now, item):
                self.known.ended.add(self.known.content[segment][item])

    def _is_known_to_end(self, lease: QueueLease, place: ItemPlace) -> bool:
        """Whether those who wait for an item that is done can know its end: somebody got it, or the end is stored."""
        ends_elsewhere = str(place.item) in lease.dead_lettered_at or self.purging
        return place in self.known.got or place in self.known.noted or ends_elsewhere

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch every item that is handed out while the block lasts."""
        real, take, name, complete = HeldSegment.hand_out, HeldSegment.take, Producer._name, HeldSegments.complete
        last: dict[Producer, str] = {}

        def observed(segment: HeldSegment, *given: Any) -> Delivery:
            delivery = real(segment, *given)
            if segment.lease.stored.key.startswith(NAMES.segments):
                self.handed_out(segment, delivery)
            return delivery

        def taken(segment: HeldSegment, isolation: PoisonIsolation) -> OutItem | None:
            item = take(segment, isolation)
            if item is not None and segment.lease.stored.key.startswith(NAMES.segments):
                self.chosen(segment)
            return item

        def named(producer: Producer, items: int) -> SegmentName:
            given = name(producer, items)
            if str(given) <= last.get(producer, ""):
                what = f"{given} after {last[producer]}"
                self.is_broken(Broken("a producer's items come in the order of its pushes", what, str(given)))
            last[producer] = str(given)
            return given

        async def completed(segments: HeldSegments, leases: Iterable[str]) -> None:
            ended, lost = list(leases), frozenset[str]()
            self.known.ending.update(ended)
            try:
                await complete(segments, ended)
            except UnknownLease as error:
                lost = frozenset(error.leases)
                raise
            finally:
                if sys.exception() is None or lost:
                    self._acknowledged(segments, [lease for lease in ended if lease not in lost])

        with (
            mock.patch.object(HeldSegment, "hand_out", observed),
            mock.patch.object(HeldSegment, "take", taken),
            mock.patch.object(Producer, "_name", named),
            mock.patch.object(HeldSegments, "complete", completed),
        ):
            yield

    def _acknowledged(self, segments: HeldSegments, leases: list[str]) -> None:
        if segments._queue.keys == NAMES:
            for lease in leases:
                self.note(OWNER.get().name, "did", lease)
                self.known.acked.add(place_of(lease))

    def is_odd(self, key: str) -> bool:
        """Whether strangers left the object, or it is the lease of such an object."""
        return key in self.strangers.odd or key.removesuffix("~lease") in self.strangers.odd


def place_of(lease: str) -> ItemPlace:
    """The place of the item of a lease."""
    segment, item, *_ = lease.split("/")
    return ItemPlace(segment, int(item))


def _is_done(lease: QueueLease, item: int) -> bool:
    return bool(int(lease.done, 16) >> item & 1)
