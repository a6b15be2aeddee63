"""Claim, burial and the pending index: every interleaving of two agents, of which one may fail, and of late writes."""

from __future__ import annotations

import pytest

from tests.model.jobworld import Rules, explored


@pytest.mark.parametrize(
    "faults",
    [("crash", "freeze"), ("crash", "failure"), ("crash", "preemption")],
    ids=" and ".join,
)
def test_no_state_is_stuck_and_no_invariant_breaks(faults: tuple[str, ...]) -> None:
    found = explored(Rules(), *faults)
    assert found.holes == {}
    assert found.states > 10_000, "the model lost its interleavings"


@pytest.mark.parametrize(
    ("rule", "faults"),
    [
        ("entry_outlives_claim", ("crash",)),
        ("unresolved_claim_kept", ()),
        ("attempt_in_entry", ("crash",)),
        ("listed_until_next_entry", ("crash", "preemption")),
        ("burial_repeated", ("crash",)),
        ("later_entry_first", ("crash",)),
    ],
)
def test_without_the_rule_a_job_is_lost(rule: str, faults: tuple[str, ...]) -> None:
    assert explored(Rules(**{rule: False}), *faults).stuck
