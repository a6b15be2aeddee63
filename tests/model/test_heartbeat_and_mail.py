"""Heartbeat and mail: no wish to stop a job is lost, without any repair, whatever lands when."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.mailboxworld import MailWorld, Rules


def explored(rules: Rules) -> Found:
    world = MailWorld(rules, "silence", "death")
    return explore(world.start, world.steps, world.good)


def test_no_mail_is_lost_and_no_live_agent_stops() -> None:
    found = explored(Rules())
    assert found.holes == {}
    assert found.states > 300, "the model lost its interleavings"


@pytest.mark.parametrize(
    ("rule", "hole"),
    [
        ("jobs_read_after_clearing", "stuck"),
        ("flag_before_mail", "stuck"),
        ("superseded_is_not_applied", "stuck"),
        ("own_late_beat_recognised", "a live agent stops by its own late beat"),
    ],
)
def test_without_the_rule_mail_is_lost_or_the_agent_stops(rule: str, hole: str) -> None:
    assert hole in explored(Rules(**{rule: False})).holes
