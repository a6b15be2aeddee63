"""The queue's code with one rule switched off: each must be caught."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from unittest import mock

from msgspec.structs import replace

from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue import collector, dead_letters, held_segment, receipts, scanner
from fray_coordinator.queue.cancelling import ItemCanceller
from fray_coordinator.queue.collector import Collector
from fray_coordinator.queue.held_segment import HeldSegment, OutItem, PoisonIsolation
from fray_coordinator.queue.held_segments import HeldSegments
from fray_coordinator.queue.producer import Producer
from fray_coordinator.queue.receipts import FinishedLog, ReceiptLog
from fray_coordinator.queue.segment_lease import SegmentLease
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.records import Records, Stored, UpdateResult
from fray_layouts import codec
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease
from tests.simulation.broken_code import Swap, Variants, late_writes

VARIANTS = Variants()
variant = VARIANTS.variant
where = VARIANTS.where


# --- trust and takeover


@variant
def hand_out_without_trust() -> list[Swap]:
    """A holder hands out its items, however long ago it wrote its lease."""
    return [(rules, "trusted_until", lambda sent, timeout: float("inf"))]


@variant
def takeover_without_waiting() -> list[Swap]:
    """A lease is taken over as soon as it is seen."""
    return [(rules, "has_expired", lambda *given: True)]


@variant
def expiry_by_the_hosts_wall_clock() -> list[Swap]:
    """Each consumer judges by its own clock, a fault of this project's predecessor."""
    real = scanner.SegmentScanner._judge

    async def judge(self: Any, segment: str, watched: Any, timeout: float) -> Any:
        core = self._queue.core
        wall = mock.patch.object(core.store, "now", core.clock.wall)
        with wall:
            return await real(self, segment, watched, timeout)

    return [(scanner.SegmentScanner, "_judge", judge)]


@variant
def no_takeover() -> list[Swap]:
    """The segments of a dead consumer are never taken over."""
    return [(rules, "has_expired", lambda *given: False)]


@variant
def takeover_forgets_what_was_done() -> list[Swap]:
    """A new owner begins with an empty bitmap."""
    real = rules.taken_over
    return [(rules, "taken_over", lambda *given, **more: replace(real(*given, **more), done="0"))]


@variant
def leases_are_written_unconditionally() -> list[Swap]:
    """A change of a lease is written without a condition."""
    real = Records.write

    async def write(self: Records, key: str, kind: Any, wanted: Any, current: Any, *more: Any, **named: Any) -> Any:
        if kind is not QueueLease or current is None:
            return await real(self, key, kind, wanted, current, *more, **named)
        body = codec.successor(wanted, self._rng.unique_id(), current.record)
        outcome = await self._store.put(key, codec.encode(body, current.raw), ANY, body.op)
        return UpdateResult(Stored(key, body, current.raw, getattr(outcome, "version", ""), self._store.now()), True, 0)

    return [(Records, "write", write)]


@variant
def the_owner_is_the_process() -> list[Swap]:
    """A lease names the consumer instead of the claim, so that a former claim of it passes for the present one."""
    return [(held_segment, "_owner", lambda queue: queue.consumer), (HeldSegment, "lose", lambda self: None)]


# --- acknowledgements


@variant
def done_returns_before_its_write_landed() -> list[Swap]:
    """`done` sends the write and does not wait for it."""

    async def end(self: HeldSegment, items: Any, edit: Any) -> None:
        for item in items:
            self.leave(item)
        task = asyncio.ensure_future(self.lease.change(edit))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    return [(HeldSegment, "_end", end)]


@variant
def what_is_not_held_was_done() -> list[Swap]:
    """A lease whose segment this process does not hold counts as done, also if the segment was lost."""
    real = HeldSegments._grouped

    def grouped(self: HeldSegments, leases: Any) -> Any:
        groups, unknown = real(self, leases)
        return groups, [lease for lease in unknown if lease.partition("/")[0] in self.by_name]

    return [(HeldSegments, "_grouped", grouped)]


@variant
def release_deletes_the_lease() -> list[Swap]:
    """A release deletes the lease and with it the acknowledgements."""
    real = SegmentLease.change

    async def change(self: SegmentLease, edit: Any) -> None:
        await real(self, edit)
        if not self.record.owner:
            await self._queue.core.store.delete(self.stored.key, self.stored.version)

    return [(SegmentLease, "change", change)]


@variant
def a_receipt_needs_no_trust() -> list[Swap]:
    """A receipt is written without trust: a new holder hands out items that the old one reported as done."""
    return [
        (rules, "allows_receipt", lambda lease, items, ending, trusted: ending == items),
        (HeldSegment, "ended_in_time", lambda self, boottime: True),
    ]


@variant
def receipts_are_not_read() -> list[Swap]:
    """Items that a dead consumer acknowledged by a receipt are handed out again."""

    async def no(*given: Any) -> bool:
        return False

    return [(ReceiptLog, "names", no)]


@variant
def receipts_are_swept_and_not_carried_over() -> list[Swap]:
    """A sweep deletes receipts at once, without a copy in the leases."""

    async def nothing(*given: Any) -> None:
        return None

    return [
        (receipts, "all_creates_landed", lambda *given: True),
        (ReceiptLog, "_carry_over", nothing),
        (collector, "SWEEP_INTERVAL", 1.0),
    ]


@variant
def receipts_stay_for_ever() -> list[Swap]:
    """Receipts of consumers that died are not swept."""

    async def nothing(*given: Any) -> None:
        return None

    return [(ReceiptLog, "sweep", nothing)]


# --- order


@variant
def the_newest_comes_first() -> list[Swap]:
    """A process hands out the newest segment that it holds."""

    def newest(self: HeldSegments) -> Any:
        return self._stocked[max(self._stocked)] if self._stocked else None

    return [(HeldSegments, "next", newest)]


@variant
def names_follow_the_clock_back() -> list[Swap]:
    """A producer names its segments by the storage's clock alone, as if that stepped back now and then."""

    def name(self: Producer, items: int) -> SegmentName:
        return SegmentName(round(self._queue.core.now() - self._queue.core.rng.random(), 3), 0, self._token, items)

    return [(Producer, "_name", name)]


# --- pushing and collecting


@variant
def what_looks_late_is_deleted() -> list[Swap]:
    """Consumers judge a segment by the storage's time of its last write."""

    async def yes(*given: Any) -> bool:
        return True

    return [(FinishedLog, "holds", yes)]


@variant
def what_was_finished_is_not_written_down() -> list[Swap]:
    """Finished segments are not noted: a create that lands after segment and lease are gone brings items back."""

    async def nothing(*given: Any) -> None:
        return None

    return [(FinishedLog, "note", nothing)]


@where(late_writes())
def finished_leases_go_at_once() -> list[Swap]:
    """Finished leases are deleted at once, not after half the quarantine."""
    return [(collector, "is_collectable", lambda *given: True), (collector, "GATHERED", 1)]


@where(late_writes())
def a_segment_that_landed_again_is_left() -> list[Swap]:
    """A segment that landed again is left, and when its lease is deleted it looks unclaimed."""

    async def let_go(self: Collector, segment: str) -> None:
        await collector.discard_lease(self._queue, self._leases.pop(segment))

    return [(Collector, "_delete_lease", let_go)]


@variant
def the_lease_is_deleted_first() -> list[Swap]:
    """The lease is deleted before the segment, which looks unclaimed for a moment."""

    async def clear(self: Collector, finished: Any) -> None:
        await self._queue.core.store.delete(finished.lease.key, finished.lease.version)
        await self._queue.core.clock.sleep(1.0)
        await self._queue.core.store.delete(self._queue.keys.segment(finished.segment), finished.version)

    return [(Collector, "_clear", clear)]


@variant
def the_segment_is_read_before_the_claim() -> list[Swap]:
    """A segment that is collected between the read and the claim is handed out again."""

    async def write(queue: Any, segment: str, wanted: Any, current: Any) -> Any:
        content = await held_segment.read_segment(queue, segment)
        if content is None:
            return None
        await queue.core.clock.sleep(1.0)
        sent = queue.core.clock.boottime()
        written = await queue.core.records.write(queue.keys.lease(segment), QueueLease, wanted, current)
        if not written.wrote:
            return held_segment.ClaimLost(written.stored)
        return HeldSegment(queue, segment, written.stored, sent, content)

    return [(held_segment, "_write_claim", write)]


@variant
def nothing_is_collected() -> list[Swap]:
    """Finished segments stay for ever."""

    async def nothing(self: Collector, *given: Any) -> None:
        return None

    return [(Collector, "_clear", nothing)]


@variant
def the_position_is_kept_for_ever() -> list[Swap]:
    """Segments that land behind the position are never found."""
    real = scanner.SegmentScanner._begin_again_if_due

    async def once(self: Any) -> None:
        if self._repair_at == float("-inf"):
            await real(self)

    return [(scanner.SegmentScanner, "_begin_again_if_due", once), (scanner.scan, "CREATE_SETTLE_SECONDS", -10.0)]


@variant
def an_empty_queue_is_listed() -> list[Swap]:
    """The doorbell is not read."""

    async def changed(self: Any) -> bool:
        return True

    return [(scanner.QueueDoorbell, "changed", changed)]


# --- poison


@variant
def failures_are_not_counted() -> list[Swap]:
    """Deaths of consumers are not counted."""
    return [(rules, "counted", lambda lease, item, by=1: lease)]


@variant
def neighbours_are_condemned() -> list[Swap]:
    """A suspect is not delivered alone: every item that is out when a process dies counts as its killer."""
    return [
        (PoisonIsolation, "admits", lambda self, suspect: True),
        (rules, "claimed", lambda *given: QueueLease(owner=given[0], holder=given[1], timeout=given[2], suspect=True)),
    ]


@variant
def what_ran_out_is_renewed_beside_a_suspect() -> list[Swap]:
    """A lease that ran out keeps nothing away, and a later write, or one that is under way, renews it."""
    return [
        (OutItem, "is_over", lambda self: self.segment.lease.lost or self.segment.lease.expired),
        (OutItem, "end_claim", lambda self: None),
    ]


@variant
def acknowledged_before_it_is_a_dead_letter() -> list[Swap]:
    """A consumer that dies between the acknowledgement and the dead letter loses the item."""
    real = dead_letters.DeadLetterWriter.write

    async def write(self: Any, held: Any, item: int, *given: Any) -> None:
        await held.lease.change(partial(rules.completed, items=1 << item))
        await self._queue.core.clock.sleep(600.0)
        await real(self, held, item, *given)

    return [(dead_letters.DeadLetterWriter, "write", write)]


# --- cancelling


@variant
def items_of_others_are_cancelled() -> list[Swap]:
    """A canceller takes a segment from the consumer that has it."""
    return [(rules, "is_free", lambda lease, updated, now: not lease.problem)]


@variant
def cancelled_items_are_only_noted() -> list[Swap]:
    """A canceller gives the segment back without completing the items, so a consumer gets them."""
    return [(rules, "cancelled", lambda lease, items: rules.released(lease))]


@variant
def cancelled_items_are_noted_last() -> list[Swap]:
    """A canceller completes the items first. If it dies then, all others wait for them for ever."""
    real = ItemCanceller._cancel_held

    async def cancel(self: ItemCanceller, held: HeldSegment, places: Any, note: Any) -> Any:
        async def nothing(places: Any) -> None:
            return None

        cancelled = await real(self, held, places, nothing)
        if cancelled:
            await note(cancelled)
        return cancelled

    return [(ItemCanceller, "_cancel_held", cancel)]


# --- odd objects


@variant
def an_odd_segment_is_everybodys_trouble() -> list[Swap]:
    """An error in one segment ends the call, and everything that was claimed with it."""

    async def outcome_of(self: Any, segment: str, claiming: Any) -> Any:
        return await claiming

    return [(scanner.SegmentScanner, "_outcome_of", outcome_of)]


@variant
def what_is_odd_is_deleted() -> list[Swap]:
    """A segment that cannot be read is deleted."""
    real = held_segment.read_segment

    async def read(queue: Any, segment: str) -> Any:
        try:
            return await real(queue, segment)
        except BadRecord:
            await queue.core.store.delete(queue.keys.segment(segment))
            return None

    return [(held_segment, "read_segment", read)]
