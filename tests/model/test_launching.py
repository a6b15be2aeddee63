"""Launching a group: all of its jobs may start, or none ever does, wherever its submitter dies or sleeps."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.launchworld import FOR_NOTHING, HALF, LaunchWorld, Rules


def explored(rules: Rules, faults: bool = True) -> Found:
    world = LaunchWorld(rules, faults)
    return explore(world.start, world.steps, world.good)


def test_all_jobs_start_or_none_and_nothing_waits_for_ever() -> None:
    assert explored(Rules()).holes == {}


@pytest.mark.parametrize(
    ("rule", "hole"), [("jobs_first", FOR_NOTHING), ("tombstone", HALF), ("void", HALF), ("stop_left", "stuck")]
)
def test_each_rule_closes_its_hole(rule: str, hole: str) -> None:
    assert hole in explored(Rules(**{rule: False})).holes


def test_without_faults_every_group_runs() -> None:
    world = LaunchWorld(Rules(), faults=False)
    found = explore(world.start, world.steps, lambda state: state.jobs == ("done", "done"))
    assert found.holes == {}
