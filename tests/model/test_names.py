"""Names and endpoints: two who create one name, and those who serve it one after another, whatever lands when."""

from __future__ import annotations

import pytest

from tests.model import namesworld, takingworld
from tests.model.explorer import Found, explore
from tests.model.namesworld import NamesWorld
from tests.model.takingworld import TakingWorld


def served(rules: namesworld.Rules, one_key: bool = False) -> Found:
    world = NamesWorld(rules, one_key)
    return explore(world.start, world.steps, world.good)


def created(rules: takingworld.Rules, *faults: str) -> Found:
    world = TakingWorld(rules, *faults)
    return explore(world.start, world.steps, world.good)


@pytest.mark.parametrize("one_key", [False, True], ids=["an actor id each", "one actor id"])
def test_callers_find_the_newest_never_go_back_and_nothing_dead_stays(one_key: bool) -> None:
    found = served(namesworld.Rules(), one_key)
    assert found.holes == {}
    assert found.states > 2_000, "the model lost its interleavings"


@pytest.mark.parametrize(
    ("rule", "one_key", "hole"),
    [
        ("name_by_cas", False, "a process announced itself after a later one"),
        ("endpoint_on_version", False, "an endpoint went back"),
        ("incarnation_first", True, "stuck"),
        ("callers_remember", False, "a caller went back to an older one"),
        ("removed_again", False, "stuck"),
    ],
)
def test_without_the_rule_an_older_one_is_met_or_something_dead_stays(rule: str, one_key: bool, hole: str) -> None:
    assert hole in served(namesworld.Rules(**{rule: False}), one_key).holes


@pytest.mark.parametrize("faults", [(), ("death",)], ids=["nobody dies", "one dies"])
def test_two_who_create_one_name_agree(faults: tuple[str, ...]) -> None:
    assert created(takingworld.Rules(), *faults).holes == {}


@pytest.mark.parametrize(
    ("rule", "faults", "hole"),
    [
        ("name_by_cas", (), "two hold one incarnation"),
        ("submitter_is_waited_for", (), "the name was taken from one who was about to use it"),
        ("but_not_for_ever", ("death",), "stuck"),
        ("told_once_it_exists", ("death",), "stuck"),
    ],
)
def test_without_the_rule_they_do_not(rule: str, faults: tuple[str, ...], hole: str) -> None:
    assert hole in created(takingworld.Rules(**{rule: False}), *faults).holes
