"""A small world for items that kill their consumers, with one consumer after the other.

The decisions are those of `protocol.queue_lease` and of `PoisonIsolation`. Each segment is claimed, its items are
handed out in any order that the gate admits; an item of `poison` kills its process with all that is out in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.held_segment import PoisonIsolation
from fray_layouts.queue_records import QueueLease
from tests.model.explorer import Step

MAX = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    alone: bool = True
    failures: bool = True
    first_delivery_is_free: bool = True
    letter_before_acknowledgement: bool = True


class Item(NamedTuple):
    """State: w(aiting), o(ut), d(one), b(ecoming a dead letter: the first of the two steps is taken), D(ead letter)."""

    state: str = "w"
    failures: int = 0


class Segment(NamedTuple):
    """A segment: its claims so far, whether it is held, and whether a claim ended without a release."""

    items: tuple[Item, ...]
    held: bool = False
    claims: int = 0
    suspect: bool = False


@dataclass(eq=False)
class Out:
    """An item that is out, for ever."""

    suspect: bool

    def is_over(self) -> bool:
        return False

    def end_claim(self) -> None:
        raise AssertionError("it is out for ever")


class PoisonWorld:
    """The steps under `rules`. poison: (segment, item) of each killer; kills: deaths of the host besides."""

    def __init__(self, rules: Rules, sizes: tuple[int, ...], poison: set[tuple[int, int]], kills: int = 0) -> None:
        self.rules = rules
        self.poison = poison
        self.start = (tuple(Segment((Item(),) * size) for size in sizes), kills)

    def good(self, w: tuple[tuple[Segment, ...], int]) -> bool:
        return all(item.state in "dD" for segment in w[0] for item in segment.items)

    def steps(self, w: tuple[tuple[Segment, ...], int]) -> Iterator[Step[tuple[tuple[Segment, ...], int]]]:
        segments, kills = w
        gate = PoisonIsolation()
        for segment in segments:
            for _ in [item for item in segment.items if item.state == "o"]:
                gate.enter(Out(segment.suspect))
        for s, segment in enumerate(segments):
            if not segment.held and any(item.state in "wb" for item in segment.items):
                yield Step(f"claims {s}", (_put(segments, s, self._claimed(segment)), kills))
            for i, item in enumerate(segment.items):
                if segment.held:
                    yield from self._item(segments, kills, gate, s, i, item)
        if kills and any(segment.held for segment in segments):
            yield Step("the host dies", (self._killed(segments), kills - 1), fault=True)

    def _item(
        self, segments: tuple[Segment, ...], kills: int, gate: PoisonIsolation, s: int, i: int, item: Item
    ) -> Iterator[Step[tuple[tuple[Segment, ...], int]]]:
        segment, name = segments[s], f"{s}.{i}"

        def becomes(state: str, failures: int = item.failures) -> tuple[tuple[Segment, ...], int]:
            return _with(segments, s, i, Item(state, failures)), kills

        if item.state == "o" and (s, i) in self.poison:
            yield Step(f"{name} kills its process", (self._killed(segments), kills))
        elif item.state == "o":
            yield Step(f"{name} is done", becomes("d"))
        elif item.state == "b":
            last = "D" if self.rules.letter_before_acknowledgement else "d"
            yield Step(f"{name}: the second step to a dead letter", becomes(last))
        elif item.state == "w" and (gate.admits(segment.suspect) or not self.rules.alone):
            if rules.is_exhausted(_record(item.failures), 0, MAX):
                condemned = "" if (s, i) in self.poison else "a harmless item is condemned"
                yield Step(f"{name} is given up", becomes("b"), breaks=condemned)
                return
            counts = (segment.suspect or not self.rules.first_delivery_is_free) and self.rules.failures
            counted = rules.counted(_record(item.failures), 0) if counts else _record(item.failures)
            yield Step(f"{name} is handed out", becomes("o", counted.failures.get("0", 0)))

    def _claimed(self, segment: Segment) -> Segment:
        """A claim after one that ended without a release."""
        if segment.claims == 0:
            return segment._replace(held=True, claims=1)
        before = QueueLease(owner="dead", claims=segment.claims, suspect=segment.suspect)
        lease = rules.taken_over(before, "new", "", 10.0)
        return segment._replace(held=True, claims=2, suspect=lease.suspect)

    def _killed(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(
            segment._replace(held=False, items=tuple(self._dropped(item) for item in segment.items))
            for segment in segments
        )

    def _dropped(self, item: Item) -> Item:
        if item.state == "o":
            return item._replace(state="w")
        if item.state == "b" and not self.rules.letter_before_acknowledgement:
            return item._replace(state="L")  # acknowledged, and no letter: lost
        return item


def _put(segments: tuple[Segment, ...], s: int, segment: Segment) -> tuple[Segment, ...]:
    return (*segments[:s], segment, *segments[s + 1 :])


def _with(segments: tuple[Segment, ...], s: int, i: int, item: Item) -> tuple[Segment, ...]:
    items = segments[s].items
    return _put(segments, s, segments[s]._replace(items=(*items[:i], item, *items[i + 1 :])))


@cache
def _record(failures: int) -> QueueLease:
    return QueueLease(failures={"0": failures} if failures else {})
