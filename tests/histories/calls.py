"""The recorded calls of clients, and the steps of a name's history that they stand for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from tests.histories.checker import State, Step


class Call(msgspec.Struct):
    """One call on the store.

    Attributes:
        client: the client that made it. number: its place among the client's calls.
        verb: "get", "put" or "delete".
        expect: the value whose version the write asked for; None for ABSENT.
        value: what a put writes.
        invoked, returned: CLOCK_MONOTONIC in seconds; `returned` is None if the outcome is unknown.
        outcome: "found", "applied", "superseded", "rejected", "gone", or "" for unknown.
        current: the value under the name, by the answer.
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
        mortal: whether the name is deleted now and then. Then a rejected write looks like one that was applied and
            deleted (`fray_coordinator.store.interface.Rejected`).
        haunted: whether requests may be applied late, so that a create may bring a deleted name back with its old
            value, and with it all writes that depend on that value.
    """

    mortal: bool
    haunted: bool

    def steps(self, calls: Iterable[Call]) -> list[Step]:
        """The steps of all calls, without uncertain ones whose value nobody has seen: they could explain nothing."""
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
    """The steps of a write; a delete with the outcome "gone" may have found the name absent."""
    before = {call.expect} if call.verb == "put" else {call.expect, None}
    returned = call.returned if certain and call.returned is not None else math.inf
    return Step(call.told(), frozenset(before), call.value, call.invoked, returned, certain)
