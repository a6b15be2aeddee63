"""A cancelled item never runs, and everybody learns what became of an item, whenever the driver dies or freezes."""

from __future__ import annotations

import pytest

from tests.model.cancelworld import CancelWorld, Rules
from tests.model.explorer import Found, explore


def explored(rules: Rules) -> Found:
    world = CancelWorld(rules)
    return explore(world.start, world.steps, world.good)


def test_with_all_rules() -> None:
    assert explored(Rules()).holes == {}


@pytest.mark.parametrize(
    ("rule", "hole"),
    [
        ("only_what_is_free", "a cancelled item runs"),
        ("completed", "a cancelled item runs"),
        ("by_the_owner", "a cancelled item runs"),
        ("noted_first", "stuck"),
    ],
)
def test_without_the_rule(rule: str, hole: str) -> None:
    assert hole in explored(Rules(**{rule: False})).holes
