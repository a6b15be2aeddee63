"""Explores every state that a small model can reach.

A model is a start state and a function from a state to its next steps. The explorer walks breadth first, so it first
meets each state on a shortest trace. It reports:

- a *violation*: a step, or a state, that breaks an invariant;
- a *stuck* state: one from which no continuation without further faults reaches a good state. Whether the run is lucky
  enough to take that continuation is a matter of scheduling; but if there is none, the protocol has a hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """One thing that can happen next.

    Attributes:
        label: what happens, for traces.
        state: the state after it.
        fault: whether this is a crash, a failure or a wish of people, on which no good end may depend.
        breaks: the invariant that this step breaks; "" for none.
    """

    label: str
    state: S
    fault: bool = False
    breaks: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What an exploration found. `violations` and `stuck` hold shortest traces, the former by broken invariant."""

    states: int
    violations: dict[str, list[str]]
    stuck: int
    stuck_trace: list[str]

    @property
    def holes(self) -> dict[str, list[str]]:
        """Every violation and every stuck state, with a trace for each; empty for a model that holds."""
        stuck = {"stuck": self.stuck_trace} if self.stuck else {}
        return self.violations | stuck


def explore(
    start: S,
    steps: Callable[[S], Iterable[Step[S]]],
    good: Callable[[S], bool],
    broken: Callable[[S], str] = lambda state: "",
    limit: int = 300_000,
    until: str = "",
) -> Found:
    """Walk all states.

    Args:
        good: where a run may end well.
        broken: the invariant that a state breaks; "" for none.
        limit: states after which the model counts as too large, which raises AssertionError.
        until: an invariant; the walk ends where it is seen broken, and then no state counts as stuck.
    """
    numbers = {start: 0}  # states hash slowly: each is looked up once, and has a number from then on
    came_from = [(0, "")]
    before: list[list[int]] = [[]]
    violations: dict[str, list[str]] = {}
    queue = deque([start])
    here = 0
    while queue:
        state = queue.popleft()
        if (what := broken(state)) and what not in violations:
            violations[what] = _trace(came_from, here)
        for step in steps(state):
            if step.breaks:
                violations.setdefault(step.breaks, [*_trace(came_from, here), step.label])
                continue
            there = numbers.setdefault(step.state, len(came_from))
            if there == len(came_from):
                came_from.append((here, step.label))
                before.append([])
                queue.append(step.state)
            if not step.fault:
                before[there].append(here)
        if until in violations:
            return Found(len(numbers), violations, 0, [])
        assert len(numbers) <= limit, f"more than {limit} states: the model is too large"
        here += 1
    states = list(numbers)
    stuck = _cannot_reach([number for number, state in enumerate(states) if good(state)], before)
    trace = [*_trace(came_from, stuck[0]), f"=> {states[stuck[0]]}"] if stuck else []
    return Found(len(states), violations, len(stuck), trace)


def _cannot_reach(good: list[int], before: list[list[int]]) -> list[int]:
    """The states, in the order met, from which no sequence of steps without faults leads to a good one.

    Args:
        before: for each state those from which a fault-free step leads to it.
    """
    fine = [False] * len(before)
    for state in good:
        fine[state] = True
    queue = deque(good)
    while queue:
        for state in before[queue.popleft()]:
            if not fine[state]:
                fine[state] = True
                queue.append(state)
    return [state for state, reaches in enumerate(fine) if not reaches]


def _trace(came_from: list[tuple[int, str]], state: int) -> list[str]:
    labels = []
    while state:
        state, label = came_from[state]
        labels.append(label)
    return labels[::-1]
