"""The pass's lease and death by observation: nobody is declared dead too early, and every death is told in the end."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.passworld import PassWorld, Rules


def explored(rules: Rules, once: bool) -> Found:
    world = PassWorld(rules, once, "crash", "death", "outage")
    return explore(world.start, world.steps, world.good)


@pytest.mark.parametrize("once", [False, True])
def test_only_who_is_silent_is_declared_dead_and_everybody_who_is_gone(once: bool) -> None:
    found = explored(Rules(), once)
    assert found.holes == {}
    assert found.states > 20_000, "the model lost its interleavings"


@pytest.mark.parametrize(
    ("rule", "once"),
    [
        ("long_gaps_add_nothing", False),
        ("long_gaps_add_nothing", True),
        ("the_leases_too", False),
        ("credit_at_the_noted_beat", False),
        ("age_of_one_version", False),
        ("death_on_the_observed_beat", False),
        ("death_on_the_observed_beat", True),
        ("silence_is_compared", False),
        ("silence_is_compared", True),
    ],
)
def test_without_the_rule_a_live_agent_is_declared_dead(rule: str, once: bool) -> None:
    assert "a live agent is declared dead too early" in explored(Rules(**{rule: False}), once).holes
