"""Gangs that form: all of their members hold their room when they start, and each forms in the end."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.formingworld import Budget, FormingWorld, Rules, Scope

HOLDS = "a gang runs of which a live member does not hold its bundle"
STUCK = "stuck"

ONE_GANG = {
    "death, heartbeats late": Scope(Budget(crash=1, singles=1, faults=1), gangs=1, late=True),
    "a freeze": Scope(Budget(freeze=1, faults=1), gangs=1),
    "one that leaves": Scope(Budget(leave=1, singles=1, faults=1), gangs=1),
    "a stop, a lost write": Scope(Budget(stop=1, lost=1, singles=1, faults=1), gangs=1),
    "death and a stale pass": Scope(Budget(crash=1, stale=1, faults=2), gangs=1),
    "freeze and a stale pass": Scope(Budget(freeze=1, stale=1, faults=2), gangs=1, on_their_way=1),
    "leaving and a stale pass": Scope(Budget(leave=1, stale=1, faults=2), gangs=1),
}
TWO_GANGS = {
    "two stale passes": Scope(Budget(stale=2, faults=2), hosts=2),
    "death": Scope(Budget(crash=1, faults=1), on_their_way=1),
}
LARGE = {
    "two gangs, death, heartbeats late": Scope(Budget(crash=1, singles=1, faults=1), late=True),
    "two gangs, a freeze": Scope(Budget(freeze=1, singles=1, faults=1), on_their_way=1),
    "two gangs, one that leaves": Scope(Budget(leave=1, singles=1, faults=1)),
    "two gangs, a stop, a lost write": Scope(Budget(stop=1, lost=1, singles=1, faults=1)),
    "a gang of three": Scope(Budget(crash=1, leave=1, stale=1, faults=1), gangs=1, hosts=4, bundles=3),
}


def explored(rules: Rules, scope: Scope, until: str = "") -> Found:
    world = FormingWorld(rules, scope)
    return explore(world.start, world.steps, world.good, world.broken, until=until)


LONG = {
    "death and a stale pass",
    "death, heartbeats late",
    "one that leaves",
    "a stop, a lost write",
    "freeze and a stale pass",
    "leaving and a stale pass",
    "death",
}


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(scope, id=name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, scope in (ONE_GANG | TWO_GANGS).items()
    ],
)
def test_gangs_form_and_are_whole_in_every_interleaving(scope: Scope) -> None:
    assert explored(Rules(), scope).holes == {}


@pytest.mark.slow
@pytest.mark.parametrize("scope", LARGE.values(), ids=LARGE)
def test_gangs_form_and_are_whole_on_more_agents(scope: Scope) -> None:
    assert explored(Rules(), scope).holes == {}


@pytest.mark.parametrize(
    ("rule", "scope"),
    [
        ("conditional", Scope(Budget(stale=1, faults=1), gangs=1)),
        ("reserve_first", Scope(Budget(singles=1), gangs=1)),
        ("round_named", Scope(Budget(stale=2, faults=2), gangs=1)),
        ("binding", Scope(Budget(singles=1), gangs=1)),
        ("withdraw", Scope(Budget(leave=1, faults=1), gangs=1)),
    ],
)
def test_without_the_rule_a_gang_starts_of_which_one_host_does_something_else(rule: str, scope: Scope) -> None:
    assert HOLDS in explored(Rules(**{rule: False}), scope, until=HOLDS).violations


def test_without_one_order_two_gangs_wait_for_each_other() -> None:
    found = explored(Rules(order=False), TWO_GANGS["two stale passes"])
    assert found.stuck


@pytest.mark.slow
def test_without_the_repair_a_gang_that_started_on_a_dead_agent_stays_there() -> None:
    assert explored(Rules(repair=False), ONE_GANG["death, heartbeats late"]).stuck
