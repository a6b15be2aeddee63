"""One segment: every pushed item can be done, and what was acknowledged is never handed out again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.explorer import Found, explore
from tests.model.queueworld import QueueWorld, Rules

PUSHED: dict[str, Any] = {"pushed": True}
TWO_ITEMS: dict[str, Any] = {"pushed": True, "items": 2}
LATE: dict[str, Any] = {"crashes": 0}
CHANGED: dict[str, Any] = {"pushed": True, "changes": 1, "crashes": 0}
"""Scopes: a crash with one item or two; a create that lands late or twice; times of the storage that change."""


def explored(rules: Rules, scope: dict[str, Any], until: str = "") -> Found:
    world = QueueWorld(rules, **scope)
    return explore(world.start, world.steps, world.good, until=until, limit=600_000)


@pytest.mark.slow
@pytest.mark.parametrize("scope", [PUSHED, CHANGED], ids=str)
def test_with_all_rules_nothing_is_lost_stuck_or_comes_back(scope: dict[str, Any]) -> None:
    assert explored(Rules(), scope).holes == {}


@pytest.mark.slow
def test_a_segment_that_only_looks_late_must_not_be_deleted() -> None:
    assert "stuck" in explored(Rules(late_is_not_void=False), CHANGED).holes


@pytest.mark.slow
@pytest.mark.parametrize("scope", [TWO_ITEMS, LATE, {}], ids=str)
def test_with_all_rules_in_a_larger_scope(scope: dict[str, Any]) -> None:
    assert explored(Rules(), scope).holes == {}


@pytest.mark.parametrize(
    ("rule", "hole"),
    [
        *(
            pytest.param(rule, "an acknowledged item is handed out", marks=pytest.mark.slow)
            for rule in (
                "read_after_claim",
                "segment_deleted_first",
                "trust_from_the_send",
                "observed",
                "receipts_in_time",
            )
        ),
        ("trust", "an acknowledged item is handed out"),
        ("done_waits", "an acknowledged item is handed out"),
        ("takeover", "stuck"),
        ("receipts_read", "an acknowledged item is handed out"),
    ],
)
def test_without_the_rule(rule: str, hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), PUSHED, until=hole).holes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "scope", "hole"),
    [
        ("compare_and_swap", PUSHED, "an acknowledged item is handed out"),
        ("written_down", LATE, "an acknowledged item is handed out"),
        ("written_down_first", LATE, "an acknowledged item is handed out"),
        ("quarantine", LATE, "an acknowledged item is handed out"),
        ("orphan_read", LATE, "an acknowledged item is handed out"),
        ("bitmap_kept", TWO_ITEMS, "an acknowledged item is handed out"),
        ("lease_outlives_release", TWO_ITEMS, "an acknowledged item is handed out"),
    ],
)
def test_without_the_rule_in_a_larger_scope(rule: str, scope: dict[str, Any], hole: str) -> None:
    assert hole in explored(Rules(**{rule: False}), scope, until=hole).holes
