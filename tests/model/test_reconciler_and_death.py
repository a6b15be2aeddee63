"""The pass's lease and death by observation: nobody is declared dead too early, and every death is told in the end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.explorer import Found, explore
from tests.model.reconcilerworld import PassWorld, Rules

TOO_EARLY = "a live agent is declared dead too early"
ONE_AFTER_ANOTHER: dict[str, Any] = {"once": False, "life": 2}
"""The observers hold the lease, and die one after another."""


def explored(rules: Rules, *faults: str, until: str = "", **scope: Any) -> Found:
    world = PassWorld(rules, scope.pop("once"), *faults, **scope)
    return explore(world.start, world.steps, world.good, until=until)


def without(rule: str) -> Rules:
    return Rules(**{rule: False})


@pytest.mark.parametrize(
    ("faults", "once"),
    [
        (["crash", "death"], False),
        *(pytest.param(["crash", "death", "outage"], once, marks=pytest.mark.slow) for once in (False, True)),
    ],
)
def test_only_who_is_silent_is_declared_dead_and_everybody_who_is_gone(faults: list[str], once: bool) -> None:
    found = explored(Rules(), *faults, once=once)
    assert found.holes == {}
    assert found.states > (20_000 if "outage" in faults else 5_000), "the model lost its interleavings"


@pytest.mark.slow
def test_every_death_is_declared_though_the_observers_die_one_after_another() -> None:
    found = explored(Rules(), "crash", "outage", **ONE_AFTER_ANOTHER)
    assert found.holes == {}
    assert found.states > 20_000, "the model lost its interleavings"


@pytest.mark.slow
def test_agents_that_fall_silent_together_are_declared_dead_after_twice_the_time() -> None:
    found = explored(Rules(), "crash", "outage", once=True, twin=True)
    assert found.holes == {}
    assert found.states > 20_000, "the model lost its interleavings"


@pytest.mark.slow
def test_a_slow_visitor_takes_nothing_away() -> None:
    found = explored(Rules(), "slow visitor", once=True)
    assert found.holes == {}
    assert found.states > 20_000, "the model lost its interleavings"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "scope"),
    [
        (["crash", "slow visitor"], {"once": True, "twin": True}),
        (["crash", "death", "outage"], {"once": False, "twin": True}),
        (["crash", "outage"], ONE_AFTER_ANOTHER | {"twin": True}),
        (["crash", "outage"], {"once": False, "life": 3}),
    ],
)
def test_the_larger_worlds_have_no_hole_either(faults: list[str], scope: dict[str, Any]) -> None:
    assert explored(Rules(), *faults, **scope).holes == {}


@pytest.mark.parametrize(
    ("rule", "once"),
    [
        *(pytest.param("long_gaps_add_nothing", once, marks=pytest.mark.slow) for once in (False, True)),
        ("the_leases_too", False),
        ("credit_at_the_noted_beat", False),
        ("age_of_one_version", False),
        *(pytest.param("death_on_the_observed_beat", once, marks=pytest.mark.slow) for once in (False, True)),
        pytest.param("silence_is_compared", False, marks=pytest.mark.slow),
        ("silence_is_compared", True),
        pytest.param("visits_are_compared", True, marks=pytest.mark.slow),
    ],
)
def test_without_the_rule_a_live_agent_is_declared_dead(rule: str, once: bool) -> None:
    assert TOO_EARLY in explored(without(rule), "crash", "death", "outage", once=once, until=TOO_EARLY).holes


def test_unless_many_are_spared_those_who_are_cut_off_together_are_declared_dead() -> None:
    assert TOO_EARLY in explored(without("the_many_are_spared"), "crash", once=True, twin=True, until=TOO_EARLY).holes


@pytest.mark.parametrize(
    ("rule", "scope"),
    [
        ("suspects_are_inherited", {"once": True}),
        ("suspects_are_inherited", ONE_AFTER_ANOTHER),
        ("sparing_is_told", {"once": True, "twin": True}),
        ("spared_for_one_is_spared_for_all", {"once": True, "twin": True}),
    ],
)
def test_without_the_rule_nobodys_death_is_ever_declared(rule: str, scope: dict[str, Any]) -> None:
    assert "stuck" in explored(without(rule), "crash", **scope).holes


def test_unless_visits_are_merged_a_slow_visitor_takes_away_what_others_saw() -> None:
    lost = "what a visit has left is lost"
    assert lost in explored(without("visits_are_merged"), "slow visitor", once=True, until=lost).holes
