"""Reservations and groups: jobs run only in bundles that are held, and nothing waits in what nobody serves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.explorer import Found, explore
from tests.model.reserveworld import ALONE, HALF, TWO, UNHELD, ReserveWorld, Rules, Scope


def explored(scope: Scope, rules: Rules | None = None) -> Found:
    world = ReserveWorld(rules or Rules(), scope)
    return explore(world.start, world.steps, world.good, world.broken)


CALM: dict[str, Any] = {"faults": 0, "singles": 0}


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(Scope(kinds=("crash",)), marks=pytest.mark.slow),
        Scope(kinds=("freeze",), singles=0),
        pytest.param(Scope(kinds=("leave", "stop")), marks=pytest.mark.slow),
        pytest.param(Scope(kinds=("release",)), marks=pytest.mark.slow),
        Scope(group=False, low=1, kinds=("rival", "release"), singles=0),
        Scope(group=False, low=1, kinds=("crash", "rival"), singles=0),
        Scope(faults=0, forever=(0,)),
    ],
    ids=str,
)
def test_all_jobs_end_and_nothing_is_held_for_ever(scope: Scope) -> None:
    assert explored(scope).holes == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "scope",
    [
        Scope(),
        Scope(group=False, low=1),
        Scope(faults=2, kinds=("crash", "stop", "release"), singles=0),
        Scope(group=False, low=1, faults=2, kinds=("freeze", "rival", "release"), singles=0),
    ],
    ids=str,
)
def test_the_same_in_larger_scopes(scope: Scope) -> None:
    assert explored(scope).holes == {}


@pytest.mark.parametrize(
    ("rule", "hole", "scope"),
    [
        ("held_first", ALONE, Scope(**CALM)),
        ("binding", UNHELD, Scope(**CALM)),
        ("busy_stays", TWO, Scope(group=False, low=1, kinds=("rival",), singles=0)),
        ("refill", "stuck", Scope(kinds=("crash",), singles=0)),
        ("stop_left", "stuck", Scope(kinds=("release",), singles=0)),
        ("drop_done", "stuck", Scope(faults=0, forever=(0,))),
        ("void", HALF, Scope(kinds=("stop",), singles=0)),
    ],
)
def test_each_rule_closes_its_hole(rule: str, hole: str, scope: Scope) -> None:
    assert hole not in explored(scope).holes
    assert hole in explored(scope, Rules(**{rule: False})).holes
