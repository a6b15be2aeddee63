"""Gangs from their start to their end: all or none, one attempt at a time, and each failure counted once."""

from __future__ import annotations

import pytest

from tests.model.gangstate import AFTER_STOP, MISCOUNTED, STOPPED_EARLY, THROWN_AWAY, TWICE, Rules
from tests.model.gangworld import explored

STUCK = "stuck"


@pytest.mark.parametrize(
    "faults",
    [
        (),
        ("crash",),
        pytest.param(("freeze",), marks=pytest.mark.slow),
        ("leave",),
        ("fail",),
        ("stop",),
        *(pytest.param(faults, marks=pytest.mark.slow) for faults in (("stop", "fail"), ("crash", "leave"))),
    ],
    ids=lambda faults: " and ".join(faults) or "none",
)
def test_a_gang_ends_as_it_should(faults: tuple[str, ...]) -> None:
    assert explored(Rules(), *faults).holes == {}


@pytest.mark.parametrize("fault", ["crash", "leave", "fail"])
def test_a_replica_that_hangs_once_another_is_gone_is_ended(fault: str) -> None:
    assert explored(Rules(), fault, hangs=True).holes == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "faults",
    [
        ("crash", "fail"),
        ("leave", "fail"),
        ("crash", "stop"),
        ("freeze", "stop"),
        ("freeze", "crash"),
    ],
    ids=" and ".join,
)
def test_so_it_does_after_two_faults(faults: tuple[str, ...]) -> None:
    assert explored(Rules(), *faults).holes == {}


@pytest.mark.parametrize(
    ("rule", "faults", "hole"),
    [
        ("same_host", ("crash",), TWICE),
        ("old_listed", ("fail",), TWICE),
        ("trust", ("freeze",), TWICE),
        ("no_grace", ("freeze",), TWICE),
        ("exit_first", (), STUCK),
        ("burial_looks", ("crash",), THROWN_AWAY),
        ("last_commits", (), STUCK),
        ("stop_waits", ("stop",), STOPPED_EARLY),
        ("heeds_stop", ("stop",), AFTER_STOP),
        pytest.param("fence", ("freeze", "fail"), MISCOUNTED, marks=pytest.mark.slow),
        pytest.param("record_first", ("stop", "fail"), STUCK, marks=pytest.mark.slow),
        ("peers", ("crash",), MISCOUNTED),
    ],
)
def test_without_the_rule(rule: str, faults: tuple[str, ...], hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), *faults, until=hole).holes


def test_without_a_watch_of_the_record_a_replica_hangs() -> None:
    assert explored(Rules(watch=False), "crash", hangs=True).stuck
