"""Submission: a job whose submitter was told that it exists can be found, however late anything lands."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.submitworld import Rules, SubmitWorld


def explored(rules: Rules, crash: bool) -> Found:
    world = SubmitWorld(rules, crash)
    return explore(world.start, world.steps, world.good)


def test_a_submitter_that_lives_leaves_an_entry_without_any_repair() -> None:
    assert explored(Rules(repair=False), crash=False).holes == {}


def test_with_the_repair_it_may_die_at_any_step() -> None:
    assert explored(Rules(), crash=True).holes == {}


@pytest.mark.parametrize("rule", ["quarantine", "written_again", "counted_from_the_name", "delete_on_version"])
def test_without_the_rule_only_the_repair_finds_the_job(rule: str) -> None:
    assert explored(Rules(repair=False, **{rule: False}), crash=False).stuck
    assert explored(Rules(**{rule: False}), crash=False).holes == {}


def test_without_the_repair_a_job_is_lost_with_its_submitter() -> None:
    assert explored(Rules(repair=False), crash=True).stuck
