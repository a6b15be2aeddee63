"""A small world for one item that its driver cancels while workers may take it; the driver may die or freeze.

The decisions are those of `protocol.queue_lease`; this module repeats the order of the canceller's and the workers'
steps. A lease runs out only if its holder is dead or frozen. A frozen driver does not know that it was frozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol import queue_lease as rules
from fray_layouts.queue_records import QueueLease
from tests.model.explorer import Step

TIMEOUT = 10.0
LONG_AGO = 100.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    only_what_is_free: bool = True
    completed: bool = True
    by_the_owner: bool = True
    noted_first: bool = True


class World(NamedTuple):
    """A state.

    Attributes:
        owner: of the lease: "" for nobody, "driver", "worker". done: the item's bit in the lease.
        driver: idle, claimed, noted (or completed, without the rule), told, refused, dead.
        answer: what the driver's caller was told; None before that.
        worker: idle, holds, runs, wrote (the outcome). outcomes: "c" or "v" in the order in which they were written.
        run_out: the lease has run out.
        deaths, freezes: of the driver, that are left.
    """

    owner: str = ""
    done: bool = False
    driver: str = "idle"
    answer: bool | None = None
    worker: str = "idle"
    outcomes: str = ""
    run_out: bool = False
    deaths: int = 1
    freezes: int = 1


class CancelWorld:
    """The steps under `rules`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.start = World()

    def good(self, w: World) -> bool:
        """Whether those who wait for the item know its end, and nobody has anything left to do."""
        return bool(w.outcomes) and w.done and w.driver in ("told", "refused", "dead")

    def steps(self, w: World) -> Iterator[Step[World]]:
        yield from self._driver(w)
        yield from self._worker(w)
        if w.driver in ("claimed", "noted") and w.deaths:
            yield Step("the driver dies", w._replace(driver="dead", deaths=0), fault=True)
        if w.owner == "driver" and not w.run_out and (w.driver == "dead" or w.freezes):
            left = w.freezes if w.driver == "dead" else 0
            yield Step("the driver's lease runs out", w._replace(run_out=True, freezes=left), fault=w.driver != "dead")

    def _driver(self, w: World) -> Iterator[Step[World]]:
        if w.driver == "idle":
            free = rules.is_free(_record(w.owner, w.done), 0.0, LONG_AGO if w.run_out else 0.0)
            if w.done or (not free and self.rules.only_what_is_free):
                yield Step("the driver is refused", w._replace(driver="refused", answer=False))
            else:
                yield Step("the driver claims", w._replace(owner="driver", run_out=False, driver="claimed"))
            return
        first, second = ("note", "complete") if self.rules.noted_first else ("complete", "note")
        if w.driver == "claimed":
            yield self._written(w, first, "noted")
        elif w.driver == "noted":
            yield self._written(w, second, "told")

    def _written(self, w: World, what: str, then: str) -> Step[World]:
        if what == "note":
            after = w._replace(outcomes=w.outcomes + "c", driver=then)
        elif w.owner == "driver" or not self.rules.by_the_owner:
            lease = _record(w.owner, w.done)
            lease = rules.cancelled(lease, 1) if self.rules.completed else rules.released(lease)
            after = w._replace(owner=lease.owner, done=rules.is_complete(lease, 1), driver=then)
        else:
            return Step("the driver finds its claim lost", w._replace(driver="refused", answer=False))
        if after.driver != "told":
            return Step(f"the driver: {what}", after)
        broken = "a cancelled item runs" if w.worker in ("holds", "runs", "wrote") else ""
        return Step(f"the driver: {what}, and its caller is told", after._replace(answer=True), breaks=broken)

    def _worker(self, w: World) -> Iterator[Step[World]]:
        if w.worker == "idle" and not w.done and (not w.owner or w.run_out):
            yield Step("a worker takes the segment", w._replace(owner="worker", run_out=False, worker="holds"))
        elif w.worker == "holds":
            broken = "a cancelled item runs" if w.answer else ""
            yield Step("the item is handed out", w._replace(worker="runs"), breaks=broken)
        elif w.worker == "runs":
            yield Step("the worker writes the outcome", w._replace(outcomes=w.outcomes + "v", worker="wrote"))
        elif w.worker == "wrote":
            done = w.done or w.owner == "worker"
            owner = "" if w.owner == "worker" else w.owner
            yield Step("the worker completes the item", w._replace(owner=owner, done=done, worker="idle"))


@cache
def _record(owner: str, done: bool) -> QueueLease:
    return QueueLease(owner=owner, timeout=TIMEOUT, done=str(int(done)))
