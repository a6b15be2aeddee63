"""What a client asked of the store and was told, and which steps of the name's history that stands for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from tests.histories.checker import State, Step


class Call(msgspec.Struct):
    """One call on the store.

    Attributes:
        client: who made it; number: its place among the client's calls.
        verb: "get", "put" or "delete".
        expect: the value whose version the write asked for; None for ABSENT.
        value: what a put writes.
        invoked, returned: CLOCK_MONOTONIC in seconds; `returned` is None while it is not known what became of it.
        outcome: "found", "applied", "superseded", "rejected", "gone", or "" for unknown.
        current: what the answer said was under the name.
    """

    client: str
    number: int
    verb: str
    key: str
    expect: State
    value: State
    invoked: float
    returned: float | None = None
    outcome: str = ""
    current: State = None

    def told(self) -> str:
        asked = {"get": "", "put": f" {self.expect} -> {self.value}", "delete": f" {self.expect}"}[self.verb]
        answer = f"{self.outcome} {self.current or ''}".strip() or "unknown"
        end = "..." if self.returned is None else f"{self.returned:.4f}"
        return f"{self.invoked:.4f}-{end} {self.client}: {self.verb} {self.key}{asked}: {answer}"


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read the calls on one name.

    Attributes:
        mortal: the name is deleted now and then. Then nobody can tell a write that was rejected from one that was
            applied and deleted (`fray_coordinator.store.interface.Rejected`).
        haunted: requests may be applied late, so that a create may bring a deleted name back with its old value, and
            with it all that was asked on condition of that value.
    """

    mortal: bool
    haunted: bool

    def steps(self, calls: Iterable[Call]) -> list[Step]:
        """The steps of all calls, but for perhaps applied ones that nothing hints at: they could explain nothing."""
        steps = [step for call in calls for step in self._steps(call)]
        seen = {state for step in steps if step.certain for state in (*step.before, step.after)}
        return [step for step in steps if step.certain or step.after in seen]

    def _steps(self, call: Call) -> Iterator[Step]:
        match call.verb, call.outcome:
            case "get", "found":
                yield _look(call)
            case "put" | "delete", "applied" | "gone":
                yield _write(call, certain=True)
            case "put", "superseded":
                yield _write(call, certain=True)
                yield _look(call)
            case "put" | "delete", "rejected":
                yield _look(call)
                if self.mortal:
                    yield _write(call, certain=False)
            case "put" | "delete", "":
                yield _write(call, certain=False)
        if self.mortal and self.haunted and call.verb != "get":
            yield _write(call, certain=False)


def _look(call: Call) -> Step:
    assert call.returned is not None, "it has an outcome"
    return Step(call.told(), frozenset({call.current}), call.current, call.invoked, call.returned)


def _write(call: Call, certain: bool) -> Step:
    """A delete that is told "gone" may have found the name absent."""
    before = {call.expect} if call.verb == "put" else {call.expect, None}
    returned = call.returned if certain and call.returned is not None else math.inf
    return Step(call.told(), frozenset(before), call.value, call.invoked, returned, certain)
