"""Restarts in place: a failed actor's next attempt by its holder, against stop, death and reaping."""

from __future__ import annotations

import pytest

from tests.model.jobstate import Rules
from tests.model.jobworld import explored


@pytest.mark.parametrize(
    "other", ["crash", "stop", *(pytest.param(other, marks=pytest.mark.slow) for other in ("freeze", "preemption"))]
)
def test_no_restarted_job_is_lost_and_no_invariant_breaks(other: str) -> None:
    found = explored(Rules(), "restart", other)
    assert found.holes == {}
    assert found.states > 1_000, "the model lost its interleavings"


@pytest.mark.slow
def test_nor_with_a_stop_besides() -> None:
    assert explored(Rules(), "restart", "crash", "stop").holes == {}


@pytest.mark.parametrize(
    ("rule", "fault", "hole"),
    [
        pytest.param("entry_outlives_restart", "crash", "stuck", marks=pytest.mark.slow),
        pytest.param("later_entry_whoever_requeued", "freeze", "stuck", marks=pytest.mark.slow),
        ("holder_heeds_stop", "stop", "a later attempt came after an acknowledged stop"),
        pytest.param("reaping_repeated", "crash", "stuck", marks=pytest.mark.slow),
    ],
)
def test_without_the_rule_it_is(rule: str, fault: str, hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), "restart", fault).holes
