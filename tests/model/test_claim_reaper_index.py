"""Claim, reaping and the pending index: every interleaving of two agents, of which one may fail, and of late writes."""

from __future__ import annotations

import pytest

from tests.model.jobstate import REQUEUED_FROM_THE_LIVING, Rules
from tests.model.jobworld import explored


@pytest.mark.parametrize(
    "faults",
    [
        ("crash",),
        *(pytest.param(("crash", other), marks=pytest.mark.slow) for other in ("freeze", "failure", "preemption")),
    ],
    ids=" and ".join,
)
def test_no_state_is_stuck_and_no_invariant_breaks(faults: tuple[str, ...]) -> None:
    found = explored(Rules(), *faults)
    assert found.holes == {}
    assert found.states > 10_000 ** (len(faults) / 2), "the model lost its interleavings"


@pytest.mark.parametrize(
    ("rule", "faults"),
    [
        ("entry_outlives_claim", ("crash",)),
        ("unresolved_claim_kept", ()),
        ("attempt_in_entry", ("crash",)),
        pytest.param("listed_until_next_entry", ("crash", "preemption"), marks=pytest.mark.slow),
        ("reaping_repeated", ("crash",)),
        ("later_entry_first", ("crash",)),
        ("finder_requeues", ("crash",)),
        ("claim_judged_by_content", ("stop",)),
    ],
)
def test_without_the_rule_a_job_is_lost(rule: str, faults: tuple[str, ...]) -> None:
    assert explored(Rules(**{rule: False}), *faults).stuck


def test_an_agent_that_joins_keeps_what_it_claims() -> None:
    assert explored(Rules(), "crash", joins=True).holes == {}


def test_without_its_record_first_it_is_taken_for_dead() -> None:
    assert REQUEUED_FROM_THE_LIVING in explored(Rules(record_first=False), joins=True).holes


@pytest.mark.parametrize("fault", ["crash", "preemption", "stop"])
def test_the_entry_leads_to_a_claim_that_no_beat_lists(fault: str) -> None:
    """That unresolved claims are listed spares a dead agent's jobs the wait for a repair."""
    assert explored(Rules(unresolved_claim_listed=False), fault).holes == {}


@pytest.mark.parametrize(
    "faults",
    [
        ("drop",),
        pytest.param(("preemption",), marks=pytest.mark.slow),
        pytest.param(("drop", "restart"), marks=pytest.mark.slow),
        pytest.param(("drop", "crash"), marks=pytest.mark.slow),
    ],
    ids=" and ".join,
)
def test_a_lease_that_a_live_agent_drops_is_taken_on_and_its_other_leases_stay_with_it(faults: tuple[str, ...]) -> None:
    found = explored(Rules(), *faults, observed=True)
    assert found.holes == {}
    assert found.states > 1_000, "the model lost its interleavings"


@pytest.mark.parametrize(
    ("rule", "faults", "hole"),
    [
        ("dropped_are_requeued", ("drop",), "stuck"),
        ("two_beats_without_it", ("drop",), REQUEUED_FROM_THE_LIVING),
        pytest.param("requeued_on_that_version", ("preemption",), REQUEUED_FROM_THE_LIVING, marks=pytest.mark.slow),
        ("unresolved_claim_listed", ("drop",), REQUEUED_FROM_THE_LIVING),
        ("nothing_taken_up_again", ("drop",), REQUEUED_FROM_THE_LIVING),
    ],
)
def test_without_the_rule_a_job_is_dropped_for_ever_or_taken_from_its_holder(
    rule: str, faults: tuple[str, ...], hole: str
) -> None:
    assert hole in explored(Rules(**{rule: False}), *faults, observed=True, until=hole).holes
