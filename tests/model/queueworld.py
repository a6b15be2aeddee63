"""A small world for one segment: a producer whose create may land late or twice, two consumers, crashes, freezes, and a
user who changes the storage's time of the segment.

The decisions are those of `protocol.queue_*`; this module repeats the order of the services' steps, as short as
possible. Time goes in ticks of half a quarantine and a little, from the time in the segment's name. A version is only
whether it is still the one that a consumer knows. A frozen consumer takes no step. The end of its trust is a step of
its own, and no observer finds a lease expired before that, because a time-out is longer than trust.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import is_collectable, looks_late
from fray_layouts.queue_records import QueueLease
from tests.model.explorer import Step

QUARANTINE = 60.0
TICK = QUARANTINE / 2 + 3
TIMEOUT = 10.0
NOBODY, GONE = -1, 9
"""Owners of a lease: none, and a claim that no living consumer acts under."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    late_is_not_void: bool = True
    written_down: bool = True
    written_down_first: bool = True
    quarantine: bool = True
    read_after_claim: bool = True
    segment_deleted_first: bool = True
    trust: bool = True
    trust_from_the_send: bool = True
    observed: bool = True
    takeover: bool = True
    compare_and_swap: bool = True
    bitmap_kept: bool = True
    done_waits: bool = True
    orphan_read: bool = True
    lease_outlives_release: bool = True
    receipts_in_time: bool = True
    receipts_read: bool = True


class Write(NamedTuple):
    """A write of a lease or a delete on its way. `fresh`: the version it expects is still the current one.

    Kinds: claim, take, ack, receipt (for all items), close (the lease, as a receipt says), release, clear (the
    segment), note (that it is finished), drop (the lease). `bits`: acknowledged items. `landed`: nobody heard of it.
    `prompt`: the trust that it would give has not ended yet.
    """

    kind: str
    bits: int = 0
    fresh: bool = True
    landed: bool = False
    prompt: bool = True


class Consumer(NamedTuple):
    """Modes: idle, watching (saw a lease once), claimed (and has not read), holding, clearing, dead. `items`: one
    letter each: w(aiting), o(ut), d(one by its user), a(cknowledged). `after`: what it writes after `write`."""

    mode: str = "idle"
    fresh: bool = False
    trusts: bool = False
    items: str = ""
    write: Write | None = None
    saw_segment: int = 0
    after: tuple[str, ...] = ()


class Lease(NamedTuple):
    """`receipted`: a receipt of its owner is there."""

    owner: int
    done: int = 0
    receipted: bool = False


class World(NamedTuple):
    """A state. `segment`: 1 + the tick of its creation, as the storage says, 0 for none. `landed`: it ever was there.
    `noted`: that it is finished is written down. `acked`: by item: 0 no, 1 `done` returned, 2 it landed and nobody was
    told."""

    tick: int
    producer: str
    flying: int
    segment: int
    landed: bool
    noted: bool
    lease: Lease | None
    consumers: tuple[Consumer, ...]
    acked: tuple[int, ...]
    late: frozenset[Write]
    crashes: int
    resends: int
    changes: int


class QueueWorld:
    """The steps under `rules`.

    Args:
        pushed: the world begins with a segment that its producer knows of.
        changes: how often the storage's times change.
    """

    def __init__(
        self, rules: Rules, items: int = 1, pushed: bool = False, crashes: int = 1, consumers: int = 2, changes: int = 0
    ) -> None:
        self.rules = rules
        self.items = items
        self.full = (1 << items) - 1
        first = World(
            tick=0,
            producer="returned" if pushed else "waits",
            flying=0 if pushed else 1,
            segment=int(pushed),
            landed=pushed,
            noted=False,
            lease=None,
            consumers=(Consumer(),) * consumers,
            acked=(0,) * items,
            late=frozenset(),
            crashes=crashes,
            resends=0 if pushed else 1,
            changes=changes,
        )
        self.start = first

    def good(self, w: World) -> bool:
        return w.producer == "returned" and all(w.acked)

    def steps(self, w: World) -> Iterator[Step[World]]:
        if w.tick < 2:
            yield Step("time passes", w._replace(tick=w.tick + 1))
        yield from self._producer(w)
        for write in w.late:
            yield Step(f"late {write.kind} is lost", w._replace(late=w.late - {write}))
            if (landed := self._land(w._replace(late=w.late - {write}), write, GONE)) is not None:
                yield Step(f"late {write.kind} lands", landed)
        for number, consumer in enumerate(w.consumers):
            if consumer.mode != "dead":
                yield from self._consumer(w, number, consumer)

    # --- the producer

    def _producer(self, w: World) -> Iterator[Step[World]]:
        if w.resends and w.flying and w.producer == "waits":
            yield Step("P sends again", w._replace(flying=w.flying + 1, resends=0), fault=True)
        if w.flying:
            landed = w._replace(flying=w.flying - 1)
            if not w.segment:
                landed = landed._replace(segment=w.tick + 1, landed=True)
            yield Step("the create lands", landed)
        if w.producer == "waits" and w.landed:
            yield Step("P returns", w._replace(producer="returned"))
        if w.changes and 0 < w.segment <= w.tick:
            yield Step("the storage's times change", w._replace(segment=w.tick + 1, changes=0), fault=True)

    # --- writes that land

    def _land(self, w: World, write: Write, owner: int) -> World | None:
        """The world after it, None if it is rejected."""
        match write.kind:
            case "clear":
                return w._replace(segment=0)
            case "note":
                return w._replace(noted=True)
            case "receipt":
                return self._with_receipt(w) if write.fresh and w.lease else w
            case "claim":
                return None if w.lease else _stale(w._replace(lease=Lease(owner)))
        if w.lease is None or not (write.fresh or not self.rules.compare_and_swap):
            return None if write.kind != "drop" else w
        done = w.lease.done
        match write.kind:
            case "drop":
                return _stale(w._replace(lease=None))
            case "take":
                return _stale(w._replace(lease=Lease(owner, done if self.rules.bitmap_kept else 0)))
            case "release":
                return _stale(w._replace(lease=Lease(NOBODY, done)))
            case "close":
                return _stale(w._replace(lease=Lease(owner, self.full)))
        acked = tuple(a or 2 * (write.bits >> i & 1) for i, a in enumerate(w.acked))
        return _stale(w._replace(lease=w.lease._replace(done=done | write.bits), acked=acked))

    def _with_receipt(self, w: World) -> World:
        """The world with a receipt of the lease's owner, whether or not it learns of that in time."""
        assert w.lease is not None
        return w._replace(lease=w.lease._replace(receipted=True), acked=tuple(a or 2 for a in w.acked))

    def _flight(self, w: World, n: int, c: Consumer, write: Write) -> Iterator[Step[World]]:
        name = f"c{n} {write.kind}"
        if write.landed:
            yield Step(f"{name} is answered", self._answered(w, n, c, write))
            return
        landed = self._land(w, write, n)
        if landed is None:
            yield Step(f"{name} is rejected", _with(w, n, Consumer()))
        else:
            heard = landed.consumers[n]
            fresh = heard.fresh if write.kind == "receipt" else True
            after = heard._replace(write=write._replace(landed=True), fresh=fresh)
            yield Step(f"{name} lands", _with(landed, n, after))

    def _answered(self, w: World, n: int, c: Consumer, write: Write) -> World:
        trusts = write.prompt or not self.rules.trust_from_the_send
        match write.kind:
            case "claim" | "take" if self.rules.read_after_claim:
                return _with(w, n, c._replace(mode="claimed", trusts=trusts, write=None))
            case "claim" | "take":
                return self._opened(w, n, c._replace(trusts=trusts, write=None), c.saw_segment)
            case "ack":
                items = "".join("a" if write.bits >> i & 1 else item for i, item in enumerate(c.items))
                acked = tuple(1 if write.bits >> i & 1 else a for i, a in enumerate(w.acked))
                return _with(w._replace(acked=acked), n, c._replace(items=items, trusts=trusts, write=None))
            case "receipt" if c.trusts or not self.rules.receipts_in_time:
                return _with(w._replace(acked=(1,) * self.items), n, _writing(c.fresh, "clear"))
            case "receipt":
                return _with(w, n, c._replace(write=None))
        return _with(w, n, _writing(c.fresh, *c.after))

    # --- consumers

    def _consumer(self, w: World, n: int, c: Consumer) -> Iterator[Step[World]]:
        if n == 0 and w.crashes:
            late = w.late | {c.write} if c.write and not c.write.landed else w.late
            yield Step("c0 dies", _with(w._replace(late=late, crashes=0), 0, Consumer("dead")), fault=True)
        if c.trusts or (c.write and c.write.prompt):
            slow = c.write._replace(prompt=False) if c.write else None
            yield Step(f"c{n}'s trust ends", _with(w, n, c._replace(trusts=False, write=slow)))
        if c.write:
            yield from self._flight(w, n, c, c.write)
        elif c.mode == "idle":
            yield from self._idle(w, n)
        elif c.mode == "nothing listed":
            yield from self._orphan(w, n)
        elif c.mode == "watching":
            yield from self._watching(w, n, c)
        elif c.mode == "claimed":
            yield Step(f"c{n} reads the segment", self._opened(w, n, c, w.segment))
        elif c.mode == "holding":
            yield from self._holding(w, n, c)

    def _idle(self, w: World, n: int) -> Iterator[Step[World]]:
        if w.lease is None:
            if w.segment:
                yield Step(f"c{n} claims", _with(w, n, Consumer(write=Write("claim"), saw_segment=w.segment)))
            elif not self.rules.orphan_read:
                yield Step(f"c{n} lists nothing", _with(w, n, Consumer("nothing listed")))
            return
        if not w.segment:
            yield from self._orphan(w, n)
        elif w.lease.done == self.full:
            order = ("clear",) if self.rules.segment_deleted_first else ("drop", "clear")
            yield Step(f"c{n} collects", _with(w, n, _writing(True, *order)))
        elif w.lease.owner == NOBODY:
            yield Step(f"c{n} takes what was released", _with(w, n, self._taking(w)))
        elif self.rules.takeover:
            yield Step(f"c{n} sees the lease", _with(w, n, Consumer("watching", fresh=True, saw_segment=w.segment)))

    def _orphan(self, w: World, n: int) -> Iterator[Step[World]]:
        finished = w.lease is not None and (w.lease.done == self.full or self._reads_receipt(w.lease))
        if w.lease is not None and not finished:
            yield Step(f"c{n} drops the lease of nothing", _with(w, n, _writing(True, "drop")))
        elif w.lease is not None and (is_collectable(0.0, w.tick * TICK, QUARANTINE) or not self.rules.quarantine):
            yield Step(f"c{n} drops a finished lease", _with(w, n, _writing(True, *self._last_writes())))

    def _last_writes(self) -> tuple[str, ...]:
        if not self.rules.written_down:
            return ("drop",)
        return ("note", "drop") if self.rules.written_down_first else ("drop", "note")

    def _reads_receipt(self, lease: Lease) -> bool:
        return lease.receipted and self.rules.receipts_read

    def _taking(self, w: World) -> Consumer:
        """Who writes the lease that it may take over, or that a receipt says is done."""
        assert w.lease is not None
        if self._reads_receipt(w.lease):
            return _writing(True, "close")
        return Consumer(write=Write("take"), saw_segment=w.segment)

    def _watching(self, w: World, n: int, c: Consumer) -> Iterator[Step[World]]:
        if w.lease is None or (not c.fresh and self.rules.observed):
            yield Step(f"c{n} sees it changed", _with(w, n, Consumer()))
        elif not self._trusted(w) or not self.rules.observed:
            unchanged = TIMEOUT if self.rules.observed else 0.0
            if rules.has_expired(_record(w.lease), unchanged, 0.0, 0.0) or not self.rules.observed:
                yield Step(f"c{n} takes over", _with(w, n, self._taking(w)))

    def _trusted(self, w: World) -> bool:
        """Whether some holder may still trust the lease as it is, so that its time-out cannot have passed."""
        assert w.lease is not None
        holder = w.consumers[w.lease.owner] if 0 <= w.lease.owner < len(w.consumers) else Consumer("dead")
        landed = holder.write is not None and holder.write.landed and holder.write.prompt
        return holder.mode != "dead" and (holder.trusts or landed)

    def _opened(self, w: World, n: int, c: Consumer, segment: int) -> World:
        if not segment:
            return _with(w, n, _writing(c.fresh, "drop"))
        late = looks_late(0.0, (segment - 1) * TICK, QUARANTINE)
        if late and (w.noted or not self.rules.late_is_not_void):
            return _with(w, n, _writing(c.fresh, "clear", "drop"))
        assert w.lease is not None or not c.fresh
        done = w.lease.done if w.lease and c.fresh else 0
        undone = rules.undone_items(_record(Lease(n, done)), self.items)
        items = "".join("w" if item in undone else "a" for item in range(self.items))
        return _with(w, n, c._replace(mode="holding", items=items, saw_segment=segment) if undone else Consumer())

    def _holding(self, w: World, n: int, c: Consumer) -> Iterator[Step[World]]:
        for item, state in enumerate(c.items):
            if state == "w" and (c.trusts or not self.rules.trust):
                broken = "an acknowledged item is handed out" if w.acked[item] == 1 else ""
                yield Step(f"c{n} hands out {item}", _with(w, n, _item(c, item, "o")), breaks=broken)
            if state == "o":
                after = _with(w, n, _item(c, item, "d"))
                acked = tuple(1 if i == item else a for i, a in enumerate(w.acked))
                yield Step(f"c{n}'s user did {item}", after if self.rules.done_waits else after._replace(acked=acked))
        bits = sum(1 << item for item, state in enumerate(c.items) if state == "d")
        if bits:
            yield Step(f"c{n} acknowledges", _with(w, n, c._replace(write=Write("ack", bits, c.fresh))))
            if set(c.items) == {"d"} and c.trusts:
                yield Step(f"c{n} writes a receipt", _with(w, n, c._replace(write=Write("receipt", bits, c.fresh))))
        elif set(c.items) == {"a"}:
            yield Step(f"c{n} is through", _with(w, n, Consumer()))
        else:
            if not c.trusts:
                yield Step(f"c{n} renews", _with(w, n, c._replace(write=Write("ack", 0, c.fresh))))
            if "o" not in c.items:
                kind = "release" if self.rules.lease_outlives_release else "drop"
                yield Step(f"c{n} releases", _with(w, n, c._replace(write=Write(kind, 0, c.fresh), saw_segment=0)))


def _writing(fresh: bool, *kinds: str) -> Consumer:
    """Who writes these, one after the other."""
    if not kinds:
        return Consumer()
    return Consumer("clearing", fresh=fresh, write=Write(kinds[0], fresh=fresh), after=kinds[1:])


def _item(c: Consumer, item: int, state: str) -> Consumer:
    return c._replace(items=c.items[:item] + state + c.items[item + 1 :])


def _with(w: World, n: int, c: Consumer) -> World:
    """The world with this consumer; a claim that nobody acts under any more is a stranger's."""
    consumers = (*w.consumers[:n], c, *w.consumers[n + 1 :])
    acting = c.mode in ("claimed", "holding") or (c.write is not None and c.write.landed)
    lease = w.lease._replace(owner=GONE) if w.lease and w.lease.owner == n and not acting else w.lease
    return w._replace(consumers=consumers, lease=lease)


def _stale(w: World) -> World:
    """The lease has changed: whoever knew it knows an old version."""
    consumers = tuple(_old(c) for c in w.consumers)
    return w._replace(consumers=consumers, late=frozenset(_aged(write) for write in w.late))


def _old(c: Consumer) -> Consumer:
    return c._replace(fresh=False, write=_aged(c.write) if c.write else None)


def _aged(write: Write) -> Write:
    return write if write.landed or write.kind in ("claim", "clear", "note") else write._replace(fresh=False)


@cache
def _record(lease: Lease) -> QueueLease:
    owner = "" if lease.owner == NOBODY else f"claim{lease.owner}"
    return QueueLease(owner=owner, timeout=TIMEOUT, done=f"{lease.done:x}")
