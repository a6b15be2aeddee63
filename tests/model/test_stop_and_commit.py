"""Stop against commit, requeue and reaping: every interleaving with one wish to stop and one fault."""

from __future__ import annotations

import pytest

from tests.model.jobstate import THROWN_AWAY, Rules
from tests.model.jobworld import explored


@pytest.mark.parametrize(
    "fault", ["crash", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("freeze", "failure", "preemption"))]
)
def test_a_stopped_job_ends_and_nothing_finished_is_lost(fault: str) -> None:
    assert explored(Rules(), "stop", fault).holes == {}


@pytest.mark.parametrize(
    ("rules", "fault", "hole"),
    [
        (Rules(holder_heeds_stop=False), "preemption", "a later attempt came after an acknowledged stop"),
        (Rules(reaper_heeds_stop=False), "crash", "a later attempt came after an acknowledged stop"),
        (Rules(decided_again=False), "crash", THROWN_AWAY),
        (Rules(complete_result_commits=False), "crash", THROWN_AWAY),
    ],
    ids=[
        "the holder ignores the flag",
        "the reaper ignores the flag",
        "a rejected commit is not decided again",
        "a result complete before the stop is discarded",
    ],
)
def test_without_the_rule_the_promise_breaks(rules: Rules, fault: str, hole: str) -> None:
    assert hole in explored(rules, "stop", fault, until=hole).holes


def test_without_the_fence_one_who_wakes_ends_the_attempt_of_another() -> None:
    hole = "an attempt was ended by another than its holder"
    assert hole in explored(Rules(fence=False), "freeze", until=hole).holes
