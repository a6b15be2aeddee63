"""Items that kill their consumers become dead letters, and nobody beside them does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.explorer import Found, explore
from tests.model.poisonworld import PoisonWorld, Rules

NEIGHBOURS: dict[str, Any] = {"sizes": (2,), "poison": {(0, 0)}}
SEGMENTS: dict[str, Any] = {"sizes": (1, 1, 1), "poison": {(0, 0), (2, 0)}}


def explored(rules: Rules, scope: dict[str, Any]) -> Found:
    world = PoisonWorld(rules, **scope)
    return explore(world.start, world.steps, world.good)


@pytest.mark.parametrize("scope", [NEIGHBOURS, SEGMENTS, {**NEIGHBOURS, "kills": 1}], ids=str)
def test_killers_become_dead_letters_and_all_others_done(scope: dict[str, Any]) -> None:
    assert explored(Rules(), scope).holes == {}


@pytest.mark.parametrize(
    ("rules", "scope", "hole"),
    [
        (Rules(alone=False), NEIGHBOURS, "a harmless item is condemned"),
        (Rules(alone=False), SEGMENTS, "a harmless item is condemned"),
        (Rules(first_delivery_is_free=False), {**NEIGHBOURS, "kills": 1}, "a harmless item is condemned"),
        (Rules(failures=False), NEIGHBOURS, "stuck"),
        (Rules(letter_before_acknowledgement=False), {**NEIGHBOURS, "kills": 1}, "stuck"),
    ],
    ids=str,
)
def test_without_the_rule(rules: Rules, scope: dict[str, Any], hole: str) -> None:
    assert hole in explored(rules, scope).holes


def test_a_host_that_dies_as_often_as_a_killer_kills_condemns_what_was_alone_on_it() -> None:
    """The limit of what can be known from outside."""
    assert explored(Rules(), {"sizes": (1,), "poison": set(), "kills": 3}).violations
