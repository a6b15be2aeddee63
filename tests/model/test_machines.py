"""Machines of a pool: none above its bounds, none forgotten, whichever scaler runs, and whatever becomes of calls."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.machinestate import Budget, Scope
from tests.model.machineworld import FORGOTTEN, OVER, UNRECORDED, MachineWorld, Rules

STUCK = "stuck"

ALONE = {
    "no fault": Scope(Budget(changes=2), scalers=1),
    "a fault": Scope(Budget(changes=1, faults=1), scalers=1),
    "two faults": Scope(Budget(faults=2), scalers=1),
    "a price limit": Scope(Budget(changes=1, faults=1), scalers=1, by_cost=True),
}
AT_ONCE = Scope(Budget(runs=3, time=2))
"""Two scalers. Looks and time are bounded there: what breaks nothing may still have something to do."""

LARGE = {
    "two under a price limit": Scope(Budget(runs=3, time=1), by_cost=True),
    "two scalers at once": AT_ONCE,
    "two faults and changes": Scope(Budget(changes=2, faults=2), scalers=1),
    "two scalers, a change": Scope(Budget(runs=3, time=2, changes=1)),
    "two scalers, a fault": Scope(Budget(runs=3, time=3, faults=1)),
    "three scalers": Scope(Budget(runs=3, time=1), scalers=3, names=3),
}


def explored(rules: Rules, scope: Scope, until: str = "") -> Found:
    world = MachineWorld(rules, scope)
    endless = scope.budget.runs > 3
    return explore(world.start, world.steps, world.good if endless else lambda state: True, world.broken, until=until)


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(scope, id=name, marks=[pytest.mark.slow] if name == "two faults" else [])
        for name, scope in ALONE.items()
    ],
)
def test_a_pool_comes_to_have_what_it_may_and_nobody_pays_for_more(scope: Scope) -> None:
    found = explored(Rules(), scope)
    assert found.holes == {}
    assert found.states > 100, "the model lost its interleavings"


@pytest.mark.slow
@pytest.mark.parametrize("scope", LARGE.values(), ids=LARGE)
def test_the_same_with_more_of_everything(scope: Scope) -> None:
    assert explored(Rules(), scope).holes == {}


@pytest.mark.parametrize(
    ("rule", "what", "scope"),
    [
        ("intent_first", UNRECORDED, ALONE["no fault"]),
        ("names_of_intents", UNRECORDED, ALONE["a fault"]),
        ("asked_first", FORGOTTEN, Scope(Budget(runs=4, changes=1))),
        ("confirm", OVER, AT_ONCE),
        pytest.param("confirm_left", OVER, AT_ONCE, marks=pytest.mark.slow),
        pytest.param("confirm_again", OVER, AT_ONCE, marks=pytest.mark.slow),
        pytest.param("strangers_go", STUCK, ALONE["two faults"], marks=pytest.mark.slow),
        ("silence", FORGOTTEN, ALONE["a fault"]),
        ("fresh_list", FORGOTTEN, ALONE["a fault"]),
        ("call_seconds", FORGOTTEN, ALONE["a fault"]),
        pytest.param("call_at_once", FORGOTTEN, Scope(Budget(runs=3, time=2, changes=1)), marks=pytest.mark.slow),
        ("waits_again", FORGOTTEN, ALONE["two faults"]),
        ("taken_first", FORGOTTEN, ALONE["a fault"]),
    ],
)
def test_without_the_rule_there_is_a_hole(rule: str, what: str, scope: Scope) -> None:
    assert what in explored(Rules(**{rule: False}), scope, until=what).holes
