"""Parents and children: no child outlives its parent's attempt for good, none is stopped or started wrongly."""

from __future__ import annotations

import pytest

from tests.model.childworld import Rules, explored

STARTED_LATE = "a child was started that was submitted after its parent's attempt had ended"
WRONGLY_STOPPED = "a child of the running attempt was stopped"
FRESH, NAMED = False, True


@pytest.mark.parametrize(
    ("named", "fault"),
    [
        (NAMED, "failure"),
        (FRESH, "sleep"),
        (NAMED, "sleep"),
        pytest.param(FRESH, "failure", marks=pytest.mark.slow),
        *(pytest.param(named, "freeze", marks=pytest.mark.slow) for named in (FRESH, NAMED)),
    ],
)
def test_children_end_with_their_parents_attempt_and_no_other_is_stopped(named: bool, fault: str) -> None:
    assert explored(Rules(), named, fault, "end").holes == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("named", [FRESH, NAMED], ids=["fresh ids", "one id"])
@pytest.mark.parametrize("faults", [("freeze", "sleep"), ("freeze", "failure", "success")], ids=" and ".join)
def test_so_they_do_in_a_larger_scope(named: bool, faults: tuple[str, ...]) -> None:
    assert explored(Rules(), named, *faults, "end").holes == {}


@pytest.mark.parametrize("named", [FRESH, pytest.param(NAMED, marks=pytest.mark.slow)], ids=["fresh ids", "one id"])
def test_the_index_alone_is_enough_if_nobody_sleeps_longer_than_the_quarantine(named: bool) -> None:
    assert explored(Rules(repair_looks_at_children=False), named, "failure", "end").holes == {}


OF_THE_INDEX = [
    ("entry_first", FRESH, ()),
    ("attempt_in_entry", NAMED, ("failure",)),
    ("kept_for_the_quarantine", FRESH, ()),
    pytest.param("entry_before_adoption", NAMED, ("failure",), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("rule", "named", "faults"), OF_THE_INDEX)
def test_without_the_rule_the_index_alone_loses_a_child(rule: str, named: bool, faults: tuple[str, ...]) -> None:
    rules = Rules(**{rule: False}, repair_looks_at_children=False)
    assert "stuck" in explored(rules, named, *faults, "end").holes


@pytest.mark.parametrize(("rule", "named", "faults"), OF_THE_INDEX)
def test_but_the_repair_finds_what_the_index_has_lost(rule: str, named: bool, faults: tuple[str, ...]) -> None:
    assert explored(Rules(**{rule: False}), named, *faults, "end").holes == {}


@pytest.mark.parametrize(
    ("rule", "named", "faults", "hole"),
    [
        ("repair_looks_at_children", FRESH, ("sleep",), "stuck"),
        ("listed_again", FRESH, (), "stuck"),
        ("earlier_attempts_too", FRESH, ("failure",), "stuck"),
        ("parent_read", FRESH, (), STARTED_LATE),
        ("child_read_first", FRESH, (), STARTED_LATE),
        pytest.param("child_read_first", FRESH, ("failure",), WRONGLY_STOPPED, marks=pytest.mark.slow),
        ("claimed_from_that_version", NAMED, ("failure",), WRONGLY_STOPPED),
        ("stop_is_about_that_link", NAMED, ("failure",), WRONGLY_STOPPED),
        (
            "waits_for_adoption",
            NAMED,
            ("failure",),
            "a child was stopped before an attempt had had its time to adopt it",
        ),
    ],
)
def test_without_the_rule(rule: str, named: bool, faults: tuple[str, ...], hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), named, *faults, "end", until=hole).holes
