"""Checks whether one name's history is possible: searches for an order of its steps that explains all answers.

The object is a register that is absent or has a value. Each step happens at one instant between its invocation and its
return: in one of the states `before` it makes the state `after`. A step that is not `certain` may never have happened,
and has no return, because a lost write may be applied at any later time.

The search is that of Wing and Gong with the memory of Lowe: a step may be next if no other one that is still to come
had returned before it was invoked; a set of steps done with the state they led to is not looked at twice, nor one that
only differs in that more of what perhaps happened is used up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

State = str | None
"""The state of the name: a value, or None if it is absent."""
LIMIT = 1_000_000
"""Combinations after which the search gives up, which takes minutes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One atomic change or look. Times are of one monotonic clock; `told` describes it for people."""

    told: str
    before: frozenset[State]
    after: State
    invoked: float
    returned: float = math.inf
    certain: bool = True

    def is_look_at(self, state: State) -> bool:
        """Whether it can only read `state` and change nothing."""
        return self.before == {self.after} == {state}

    def is_worth_trying(self, state: State) -> bool:
        """Whether it is possible in `state`; an uncertain step counts only if it changes something."""
        return state in self.before and (self.certain or state != self.after)


@dataclass(slots=True)
class Verdict:
    """order: the longest order found, all certain steps if it is `linearizable`; stuck: those that had to come next."""

    linearizable: bool
    order: list[Step]
    stuck: list[Step]

    def __str__(self) -> str:
        lines = ["the longest order that explains what was seen:", *(f"  {step.told}" for step in self.order[-20:])]
        return "\n".join([*lines, "then nothing can come before these return:", *(f"  {s.told}" for s in self.stuck)])


def check(steps: Sequence[Step], initial: State = None) -> Verdict:
    """Search; `initial` is the state before the first step."""
    return _Search(sorted(steps, key=lambda step: step.invoked)).run(initial)


class _Search:
    """One search. Steps are bits of an integer, by their place in the order of invocation."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._certain = sum(1 << place for place, step in enumerate(steps) if step.certain)
        self._best: list[int] = []
        self._seen: dict[tuple[int, State], list[int]] = defaultdict(list)
        self._looks = 0

    def run(self, initial: State) -> Verdict:
        """Depth first."""
        paths: list[tuple[int, State, list[int]]] = [(0, initial, [])]
        while paths:
            done, state, order = self._look(*paths.pop())
            if len(order) > len(self._best):
                self._best = order
            if not self._certain & ~done:
                return Verdict(True, self._named(order), [])
            if not self._is_new(done, state):
                continue
            paths += [
                (done | 1 << place, self._steps[place].after, [*order, place])
                for place in sorted(self._next(done), key=lambda place: self._steps[place].certain)
                if self._steps[place].is_worth_trying(state)
            ]  # the last is tried first: certain steps before uncertain ones
        return Verdict(False, self._named(self._best), self._named(self._next(sum(1 << p for p in self._best))))

    def _is_new(self, done: int, state: State) -> bool:
        """Whether no earlier visit to the same certain steps and state had as many uncertain steps left."""
        spent = done & ~self._certain
        known = self._seen[done & self._certain, state]
        if any(not other & ~spent for other in known):
            return False
        known.append(spent)
        self._looks += 1
        if self._looks > LIMIT:
            raise RuntimeError(f"undecided after {LIMIT} combinations; record shorter histories")
        return True

    def _look(self, done: int, state: State, order: list[int]) -> tuple[int, State, list[int]]:
        """Take all steps that change nothing and are possible now; taking them later would be no better."""
        while looks := [place for place in self._next(done) if self._steps[place].is_look_at(state)]:
            done |= sum(1 << place for place in looks)
            order = order + looks
        return done, state, order

    def _next(self, done: int) -> list[int]:
        """The steps that were invoked before any other remaining step had returned."""
        first_return = math.inf
        found = []
        for place in range(_first_zero(done), len(self._steps)):
            step = self._steps[place]
            if step.invoked > first_return:
                break
            if not done >> place & 1:
                found.append(place)
                if step.certain:
                    first_return = min(first_return, step.returned)
        return found

    def _named(self, places: Sequence[int]) -> list[Step]:
        return [self._steps[place] for place in places]


def _first_zero(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1
