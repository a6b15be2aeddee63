"""A small world for items that are out in one process, some of them suspects, and whose leases run out and are renewed.

`PoisonIsolation` decides what may be handed out beside what. Each item has a segment of its own. A suspect's start is
written before the item is handed out. A write that is on its way is applied, whatever was decided meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fray_coordinator.queue.held_segment import PoisonIsolation
from tests.model.explorer import Step


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    alone: bool = True
    written_keeps_away: bool = True
    claim_ends: bool = True


class Item(NamedTuple):
    """State: w(aiting), s(tart being written), o(ut), e(nded). `expired`, `lost`, `writing`: its claim's lease."""

    state: str = "w"
    expired: bool = False
    lost: bool = False
    writing: bool = False


Items = tuple[Item, ...]


@dataclass(eq=False)
class Out:
    """An item for the gate."""

    suspect: bool
    item: Item
    rules: Rules
    ended: bool = False

    def is_over(self) -> bool:
        kept_away = self.item.writing and self.rules.written_keeps_away
        return self.item.lost or (self.item.expired and not kept_away)

    def end_claim(self) -> None:
        self.ended = self.rules.claim_ends


class IsolationWorld:
    """The steps under `rules`. suspects: whether each item is a suspect."""

    def __init__(self, rules: Rules, suspects: tuple[bool, ...]) -> None:
        self.rules = rules
        self.suspects = suspects
        self.start: Items = (Item(),) * len(suspects)

    def good(self, items: Items) -> bool:
        return all(item.state == "e" for item in items)

    def steps(self, items: Items) -> Iterator[Step[Items]]:
        for at, item in enumerate(items):
            if item.state == "w":
                yield from self._entering(items, at)
            elif item.state in "so":
                yield from self._in_process(items, at, item)

    def _entering(self, items: Items, at: int) -> Iterator[Step[Items]]:
        gate, suspect = PoisonIsolation(), self.suspects[at]
        out = {n: Out(self.suspects[n], item, self.rules) for n, item in enumerate(items) if item.state in "so"}
        for other in out.values():
            (gate._suspects if other.suspect else gate._others).add(other)
        if self.rules.alone and not gate.admits(suspect):
            return
        gate.enter(Out(suspect, Item(), self.rules))
        for n, other in out.items():
            items = _put(items, n, items[n]._replace(lost=items[n].lost or other.ended))
        entered = Item("s", writing=True) if suspect else Item("o")
        yield self._step(f"{at} enters", _put(items, at, entered))

    def _in_process(self, items: Items, at: int, item: Item) -> Iterator[Step[Items]]:
        if not item.expired:
            yield self._step(f"the lease of {at} runs out", _put(items, at, item._replace(expired=True)), fault=True)
        if item.state == "s":
            # A lease that was lost meanwhile is not trusted, and then the item is not handed out.
            written = Item("e") if item.lost else item._replace(state="o", expired=False, writing=False)
            yield self._step(f"the start of {at} is written", _put(items, at, written))
            return
        yield self._step(f"{at} ends", _put(items, at, Item("e")))
        if item.writing:
            renewed = item._replace(expired=False, writing=False)
            yield self._step(f"{at} is renewed", _put(items, at, renewed))
        elif not item.lost and item.expired:
            yield self._step(f"{at} is being renewed", _put(items, at, item._replace(writing=True)))

    def _step(self, what: str, items: Items, fault: bool = False) -> Step[Items]:
        """The step, which is wrong if a suspect is out beside another item, as far as their users know."""
        out = [suspect for item, suspect in zip(items, self.suspects, strict=True) if _is_kept(item)]
        breaks = "a suspect is not alone" if any(out) and len(out) > 1 else ""
        return Step(what, items, fault=fault, breaks=breaks)


def _is_kept(item: Item) -> bool:
    """Whether the item's user may go on with it."""
    return item.state == "o" and not item.expired


def _put(items: Items, at: int, item: Item) -> Items:
    return (*items[:at], item, *items[at + 1 :])
