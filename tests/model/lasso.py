"""Looks for a run that never ends; if there is none, finds the longest one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)

Moves = Iterable[tuple[str, int, S]]
"""The possible next steps: a label, its duration, and the state after it."""


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest run before a good state. endless: the end of a run that never reaches one; [] if there is none."""

    states: int
    length: int
    endless: list[str]


@dataclass(slots=True)
class _Visit(Generic[S]):
    state: S
    moves: Iterator[tuple[str, int, S]]
    label: str = ""
    cost: int = 0
    longest: int = 0


@dataclass(slots=True)
class _Walk(Generic[S]):
    """Depth first; `done` has how long the longest run from each state is that has been walked to its end."""

    path: list[_Visit[S]]
    done: dict[S, int] = field(default_factory=dict)


def longest_run(start: S, moves: Callable[[S], Moves[S]], good: Callable[[S], bool], limit: int = 100_000) -> Longest:
    """Walk all runs from `start` to good states. More states than `limit` raise AssertionError."""
    walk = _Walk([_Visit(start, iter(moves(start)))])
    on_path = {start}
    while True:
        visit = walk.path[-1]
        move = next(visit.moves, None)
        if move is None:
            walk.path.pop()
            on_path.discard(visit.state)
            walk.done[visit.state] = visit.longest
            if not walk.path:
                return Longest(len(walk.done), visit.longest, [])
            walk.path[-1].longest = max(walk.path[-1].longest, visit.longest + visit.cost)
            continue
        label, cost, state = move
        if good(state):
            visit.longest = max(visit.longest, cost)
        elif state in walk.done:
            visit.longest = max(visit.longest, walk.done[state] + cost)
        elif state in on_path:
            return Longest(len(walk.done), -1, [step.label for step in walk.path[-12:]] + [label])
        else:
            assert len(walk.done) + len(on_path) < limit, "the model is too large"
            on_path.add(state)
            walk.path.append(_Visit(state, iter(moves(state)), label, cost))
