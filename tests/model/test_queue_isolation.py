"""A suspect is alone in its process, also while leases run out and are renewed."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.isolationworld import IsolationWorld, Rules

SCOPES = [(True, False), (True, True), (True, False, False), (True, True, False)]


def explored(rules: Rules, suspects: tuple[bool, ...]) -> Found:
    world = IsolationWorld(rules, suspects)
    return explore(world.start, world.steps, world.good)


@pytest.mark.parametrize("suspects", SCOPES, ids=str)
def test_with_all_rules_a_suspect_is_alone_and_every_item_ends(suspects: tuple[bool, ...]) -> None:
    assert explored(Rules(), suspects).holes == {}


@pytest.mark.parametrize("rule", ["alone", "written_keeps_away", "claim_ends"])
def test_without_the_rule(rule: str) -> None:
    assert "a suspect is not alone" in explored(Rules(**{rule: False}), (True, False)).holes
