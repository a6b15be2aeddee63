"""Explores every state that a small model can reach.

A model is a start state and a function from a state to its next steps. The explorer walks breadth first, so each state
is first met on a shortest trace, and reports what is wrong:

- a *violation*: a step, or a state, that breaks an invariant;
- a *stuck* state: one from which no continuation without further faults reaches a good state. Whether the run is lucky
  enough to take that continuation is a matter of scheduling; that there is none is a hole in the protocol.
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
        fault: nothing may depend on this happening for the better: crashes, failures, wishes of people.
        breaks: the invariant that this very step breaks; "" for none.
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
        """Everything that is wrong, with a trace for each; empty for a model that holds."""
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
    came_from: dict[S, tuple[S, str] | None] = {start: None}
    fault_free: dict[S, list[S]] = {}
    violations: dict[str, list[str]] = {}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if (what := broken(state)) and what not in violations:
            violations[what] = _trace(came_from, state)
        for step in steps(state):
            if step.breaks:
                violations.setdefault(step.breaks, [*_trace(came_from, state), step.label])
                continue
            if not step.fault:
                fault_free.setdefault(step.state, []).append(state)
            if step.state not in came_from:
                came_from[step.state] = (state, step.label)
                queue.append(step.state)
        if until in violations:
            return Found(len(came_from), violations, 0, [])
        assert len(came_from) <= limit, f"more than {limit} states: the model is too large"
    stuck = _cannot_reach(came_from, fault_free, good)
    trace = [*_trace(came_from, stuck[0]), f"=> {stuck[0]}"] if stuck else []
    return Found(len(came_from), violations, len(stuck), trace)


def _cannot_reach(states: Iterable[S], before: dict[S, list[S]], good: Callable[[S], bool]) -> list[S]:
    """The states, in the order met, from which no fault-free step after step leads to a good one."""
    states = list(states)
    fine = {state for state in states if good(state)}
    queue = deque(fine)
    while queue:
        for state in before.get(queue.popleft(), ()):
            if state not in fine:
                fine.add(state)
                queue.append(state)
    return [state for state in states if state not in fine]


def _trace(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    labels = []
    while (origin := came_from[state]) is not None:
        state, label = origin
        labels.append(label)
    return labels[::-1]
