"""The inbox: two agents, one of which may die, a person who changes their mind or copies slowly, and retention."""

from __future__ import annotations

import pytest

from tests.model import dropworld
from tests.model.explorer import Found, explore
from tests.model.inboxworld import InboxWorld, Rules


def explored(rules: Rules, drops: int, forgets: int, *faults: str, until: str = "") -> Found:
    world = InboxWorld(rules, drops, forgets, *faults)
    return explore(world.start, world.steps, world.good, world.broken, until=until)


@pytest.mark.parametrize(
    ("drops", "forgets", "faults"),
    [
        (1, 2, ("crash", "withdraw", "stop")),
        pytest.param(2, 1, ("crash",), marks=pytest.mark.slow),
        pytest.param(2, 0, ("stop", "withdraw"), marks=pytest.mark.slow),
    ],
)
def test_each_dropped_version_runs_once(drops: int, forgets: int, faults: tuple[str, ...]) -> None:
    assert explored(Rules(), drops, forgets, *faults).holes == {}


@pytest.mark.parametrize(
    ("rule", "drops", "forgets", "faults", "hole"),
    [
        ("looks_again", 1, 1, (), "a dropped version ran twice"),
        ("retention_looks", 1, 1, (), "a dropped version ran twice"),
        ("id_of_version", 1, 0, (), "a dropped version ran twice"),
        ("same_record", 1, 1, ("withdraw",), "a dropped version ran twice"),
        pytest.param("conditional_delete", 2, 0, (), "stuck", marks=pytest.mark.slow),
        ("file_goes_anyway", 1, 0, ("stop",), "stuck"),
        ("born_unadmitted", 1, 1, (), "a dropped version ran twice"),
        ("born_unadmitted", 1, 0, ("withdraw",), "a version ran that was changed before it became a job"),
        ("admission_stands", 1, 0, (), "stuck"),
    ],
)
def test_without_the_rule_a_drop_is_lost_or_runs_twice(
    rule: str, drops: int, forgets: int, faults: tuple[str, ...], hole: str
) -> None:
    assert hole in explored(Rules(**{rule: False}), drops, forgets, *faults, until=hole).holes


@pytest.mark.parametrize("fault", ["", "stall", "chmod", "death"])
def test_a_file_copied_into_a_local_inbox_is_read_whole_and_runs_once(fault: str) -> None:
    assert dropworld.explored(dropworld.Rules(), 3, fault).holes == {}


def test_other_rights_for_a_drop_whose_agent_dies_make_no_second_job_of_it() -> None:
    assert dropworld.explored(dropworld.Rules(), 2, "chmod", "death", "stall").holes == {}


@pytest.mark.parametrize(
    ("rule", "faults", "hole"),
    [
        ("two_looks", (), "a drop was rejected while it was being copied"),
        ("renamed_aside", (), "stuck"),
        ("aside_read_again", (), "stuck"),
        ("aside_lies_still", (), "stuck"),
        ("named_first", ("chmod", "death"), "a dropped version ran twice"),
    ],
)
def test_without_the_rule_what_is_being_copied_is_lost_or_rejected_or_runs_twice(
    rule: str, faults: tuple[str, ...], hole: str
) -> None:
    assert hole in dropworld.explored(dropworld.Rules(**{rule: False}), 2, *faults).holes
