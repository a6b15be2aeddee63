"""Drivers: what they own ends with them for good, and a driver that lives loses nothing."""

from __future__ import annotations

import pytest

from tests.model.driverworld import Rules, explored

LATE = "a child was started that was submitted after its driver's job had ended"
REQUEUE = "a driver's job was requeued, so that an agent would run it"
ENDED_ALIVE = "the job of a driver that lives was ended"
HAD_BEATEN = "a driver was declared dead that had beaten since it was seen silent"


@pytest.mark.parametrize("faults", [("kill", "double"), ("leave", "kill"), ("freeze",)], ids=" and ".join)
def test_jobs_that_a_driver_owns_end_with_it(faults: tuple[str, ...]) -> None:
    assert explored(Rules(), *faults).holes == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_so_it_does_in_a_larger_scope() -> None:
    assert explored(Rules(), "freeze", "double", "leave", "kill").holes == {}


@pytest.mark.parametrize(
    ("rule", "faults", "hole"),
    [
        ("agent_first", (), ENDED_ALIVE),
        ("repair_looks_at_jobs", ("kill",), "stuck"),
        ("one_attempt", ("kill",), REQUEUE),
        ("dead_at_that_beat", ("freeze",), HAD_BEATEN),
        ("parent_read", ("freeze",), LATE),
        ("child_read_first", ("freeze",), LATE),
        ("children_looked_at_again", ("kill",), "stuck"),
    ],
)
def test_without_the_rule(rule: str, faults: tuple[str, ...], hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), *faults, until=hole).holes
