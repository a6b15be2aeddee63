"""Checkpoints of a durable actor: no acknowledged call is lost, whichever attempt wakes and whatever lands when."""

from __future__ import annotations

import pytest

from tests.model.checkpointworld import CheckpointWorld, Rules
from tests.model.explorer import Found, explore

LOST = "an acknowledged call is lost"
OUTDATED = "an older one acknowledges what a newer one lacks"


def explored(rules: Rules, attempts: int = 2, late: int = 1, limit: int = 200_000, until: str = "") -> Found:
    world = CheckpointWorld(rules, attempts, numbers=5, late=late)
    return explore(world.start, world.steps, world.good, world.broken, limit, until)


@pytest.mark.slow
def test_no_acknowledged_call_is_lost_and_the_newest_goes_on() -> None:
    found = explored(Rules())
    assert found.holes == {}
    assert found.states > 20_000, "the model lost its interleavings"


@pytest.mark.slow
def test_nor_with_three_attempts() -> None:
    assert explored(Rules(), attempts=3, late=0, limit=5_000_000).holes == {}


@pytest.mark.parametrize(
    ("rule", "late", "hole"),
    [
        ("fenced", 0, OUTDATED),
        ("fence_holds_state", 0, LOST),
        ("fence_listed_after", 0, OUTDATED),
        ("checkpoint_listed_after", 1, LOST),
        ("older_stops", 0, OUTDATED),
        ("reply_waits", 0, LOST),
        ("collected_below_own", 0, LOST),
        pytest.param("own_write_known", 1, "stuck", marks=pytest.mark.slow),
    ],
)
def test_without_the_rule_a_call_is_lost_or_the_actor_ends(rule: str, late: int, hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), late=late, until=hole).holes
