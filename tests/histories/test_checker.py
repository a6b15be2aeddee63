"""The checker: it accepts what can have been, catches what cannot, and agrees with the package `detangle`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from tests.histories.broken import (
    BringsBack,
    ConjuresUp,
    CrownsTwoWinners,
    LosesUpdates,
    ReadsStale,
    Sound,
    used,
)
from tests.histories.calls import Call, Reading
from tests.histories.checker import State, Step, check
from tests.histories.recorder import histories
from tests.histories.second_opinion import accepts


def get(client: str, found: State, invoked: float, returned: float) -> Call:
    return Call(client, 0, "get", "key", None, None, invoked, returned, "found", found)


def put(client: str, expect: State, value: str, invoked: float, returned: float | None, outcome: str = "applied",
        current: State = None) -> Call:  # fmt: skip
    return Call(client, 0, "put", "key", expect, value, invoked, returned, outcome, current)


def delete(client: str, expect: State, invoked: float, returned: float | None, outcome: str = "gone",
           current: State = None) -> Call:  # fmt: skip
    return Call(client, 0, "delete", "key", expect, None, invoked, returned, outcome, current)


GOOD = {
    "nothing happened": [],
    "one after the other": [put("a", None, "1", 0, 1), put("b", "1", "2", 2, 3), get("a", "2", 4, 5)],
    "a read beside a write sees either": [
        put("a", None, "1", 0, 10), get("b", None, 1, 2), get("b", "1", 3, 4), get("b", "1", 5, 6),
    ],
    "a lost write that never was": [put("a", None, "1", 0, None, ""), get("b", None, 5, 6), put("b", None, "2", 7, 8)],
    "a lost write that lands much later": [
        put("a", None, "1", 0, None, ""), get("b", None, 5, 6), get("b", "1", 8, 9), put("b", "1", "2", 10, 11),
    ],
    "superseded": [
        put("a", None, "1", 0, 1), put("a", "1", "2", 2, 9, "superseded", "3"), put("b", "2", "3", 4, 5),
    ],
    "rejected by the one who was quicker": [put("a", None, "1", 0, 9), put("b", None, "2", 1, 8, "rejected", "1")],
    "deleted and created again": [put("a", None, "1", 0, 1), delete("b", "1", 2, 3), put("a", None, "2", 4, 5)],
    "two deletes, both told that it is gone": [
        put("a", None, "1", 0, 1), delete("a", "1", 2, 5), delete("b", "1", 3, 6),
    ],
    "a rejected write that was applied and deleted": [
        put("a", None, "1", 0, 1), put("a", "1", "2", 2, 9, "rejected", None), get("b", "2", 4, 5),
        delete("b", "2", 6, 7),
    ],
}  # fmt: skip
BAD = {
    "lost update": [
        put("a", None, "1", 0, 1), put("a", "1", "2", 2, 5), put("b", "1", "3", 3, 6), get("a", "3", 7, 8),
    ],
    "stale read": [put("a", None, "1", 0, 1), put("a", "1", "2", 2, 3), get("b", "1", 4, 5)],
    "two reads, the later one older": [
        put("a", None, "1", 0, 1), put("a", "1", "2", 2, 20), get("b", "2", 4, 5), get("c", "1", 6, 7),
    ],
    "phantom create": [put("a", None, "1", 0, 1), get("b", None, 2, 3)],
    "a value that nobody wrote": [put("a", None, "1", 0, 1), get("b", "7", 2, 3)],
    "double winner": [put("a", None, "1", 0, 5), put("b", None, "2", 1, 6)],
    "a lost write that was seen, then not": [
        put("a", None, "1", 0, None, ""), get("b", "1", 5, 6), get("b", None, 7, 8),
    ],
    "applied before it was asked for": [get("b", "1", 0, 1), put("a", None, "1", 2, 3)],
    "a deleted name born again": [put("a", None, "1", 0, 1), delete("a", "1", 2, 3), get("b", "1", 4, 5)],
    "rejected by nobody": [put("a", None, "1", 0, 1), put("b", "1", "2", 2, 3, "rejected", "9")],
}  # fmt: skip


@pytest.mark.parametrize("calls", GOOD.values(), ids=list(GOOD))
def test_possible_histories_are_accepted(calls: list[Call]) -> None:
    assert agreed(Reading(mortal=True, haunted=False).steps(calls))


@pytest.mark.parametrize("calls", BAD.values(), ids=list(BAD))
def test_impossible_histories_are_caught(calls: list[Call]) -> None:
    assert not agreed(Reading(mortal=True, haunted=False).steps(calls))


def test_on_a_name_that_is_never_deleted_a_rejected_write_was_not_applied() -> None:
    calls = [put("a", None, "1", 0, 1), put("a", "1", "2", 2, 9, "rejected", "1"), get("b", "2", 4, 5)]
    assert agreed(Reading(mortal=True, haunted=False).steps(calls[:2]))
    assert not agreed(Reading(mortal=False, haunted=False).steps(calls))


def test_late_requests_may_bring_a_deleted_name_back_and_only_they() -> None:
    calls = BAD["a deleted name born again"]
    assert agreed(Reading(mortal=True, haunted=True).steps(calls))
    assert not agreed(Reading(mortal=False, haunted=True).steps(calls))


def test_the_verdict_says_where_it_ends() -> None:
    verdict = check(Reading(mortal=False, haunted=False).steps(BAD["stale read"]))
    assert [step.after for step in verdict.order] == ["1", "2"]
    assert "b: get key: found 1" in str(verdict)


def test_a_sound_store_is_found_sound() -> None:
    assert all(agreed(steps) for steps in histories(used(Sound()), haunted=False).values())


@pytest.mark.parametrize("broken", [LosesUpdates, CrownsTwoWinners, ReadsStale, ConjuresUp, BringsBack])
def test_each_broken_store_is_caught(broken: type[Sound]) -> None:
    assert not all(agreed(steps) for steps in histories(used(broken()), haunted=False).values())


@given(st.randoms(use_true_random=False), st.integers(3, 12), st.booleans())
def test_it_agrees_with_detangle(rng: random.Random, length: int, lies: bool) -> None:
    steps = invented(rng, length)
    if lies:
        liar = rng.randrange(length)
        steps[liar] = Step("a lie", frozenset(rng.choice("abc")), rng.choice("abc"), steps[liar].invoked, 99)
    agreed(steps)


def invented(rng: random.Random, length: int) -> list[Step]:
    """Steps as a real register would have taken them at `n`, each called somewhat earlier and answered later."""
    state: State = None
    steps = []
    for at in range(length):
        after = rng.choice([state, "a", "b", "c", None])
        certain = rng.random() < 0.8
        ends = at + rng.uniform(0, 3) if certain else math.inf
        steps.append(Step(f"{state} -> {after}", frozenset({state}), after, at - rng.uniform(0, 3), ends, certain))
        state = after if certain or rng.random() < 0.5 else state
    return steps


def agreed(steps: Sequence[Step]) -> bool:
    """What both checkers say."""
    ours = check(steps).linearizable
    assert ours == accepts(steps)
    return ours
