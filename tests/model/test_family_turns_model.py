"""Families: an owner of a placement and what it waits for never wait for each other for ever."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.explorer import Found, explore
from tests.model.familyworld import FamilyWorld, Part, Rules

GANG = Part(2, 2)
CHILD = {"w": Part(at=0, waits=("c",)), "o": GANG, "c": Part(above=("w",))}
LARGE = {**CHILD, "c": Part(2, above=("w",))}
SIBLING = {"a": Part(above=("d",), waits=("t",), at=0, alone=True), "o": GANG, "t": Part(2, above=("d",), alone=True)}
CREW = {"w": Part(at=0, waits=("k",)), "o": GANG, "k": Part(1, 2, above=("w",))}
BESIDE = {"w": Part(at=0, waits=("k",)), "k": Part(2, 2, above=("w",)), "s": Part(2, at=2)}
GUEST = {
    "r": Part(2, above=("d",), at=0, alone=True),
    "o": GANG,
    "n": Part(above=("d",), waits=("m",), alone=True),
    "m": Part(2, above=("d",), alone=True),
}
TWO = {
    "c": Part(above=("d",), waits=("p",), at=0, alone=True),
    "x": Part(above=("e",), waits=("y",), at=3, alone=True),
    "o": GANG,
    "q": GANG,
    "p": Part(2, above=("d",), alone=True, fits=(2,)),
    "y": Part(2, above=("e",), alone=True, fits=(1,)),
}
GRANDCHILD = {**CHILD, "c": Part(above=("w",), waits=("e",)), "e": Part(above=("w", "c"))}
SERVICE = {"w": Part(at=0, waits=("s",)), "o": GANG, "s": Part(2, at=1)}
LATER = {"x": Part(2, waits=("p",)), "p": Part(2, at=0), "c": Part(2, above=("p",), at=1, server=True)}


def explored(parts: dict[str, Part], rules: Rules | None = None, **more: Any) -> Found:
    world = FamilyWorld(parts, rules=rules or Rules(), **more)
    return explore(world.start(), world.steps, world.good, world.broken)


STORIES: dict[str, tuple[dict[str, Part], dict[str, Any]]] = {
    "a child": (CHILD, {}),
    "a child that fits only where a vote is": (LARGE, {}),
    "an actor of a driver and its next task": (SIBLING, {}),
    "a child gang": (CREW, {}),
    "a gang beside its parent": (BESIDE, {"hosts": (2, 2, 2)}),
    "a grandchild": (GRANDCHILD, {}),
    "a service that was requeued": (SERVICE, {"requeues": 1}),
    "a guest whose host has ended": (GUEST, {}),
    "a requeued parent whose child has the last room": (LATER, {"requeues": 1}),
}


@pytest.mark.parametrize(
    "story", [pytest.param(story, marks=[pytest.mark.slow] if story == "a child gang" else []) for story in STORIES]
)
def test_everything_ends(story: str) -> None:
    parts, more = STORIES[story]
    found = explored(parts, **more)
    assert found.holes == {}
    assert found.states > 10, "the model lost its interleavings"


@pytest.mark.parametrize(
    ("off", "story"),
    [
        ("let_in", "a child"),
        ("whole_family", "an actor of a driver and its next task"),
        ("quiet", "a child that fits only where a vote is"),
        ("owners_too", "a child gang"),
        ("apart", "a gang beside its parent"),
        pytest.param("again", "a guest whose host has ended", marks=pytest.mark.slow),
        ("ran_before", "a service that was requeued"),
        ("makes_room", "a requeued parent whose child has the last room"),
    ],
)
def test_without_one_of_the_rules_all_wait_for_ever(off: str, story: str) -> None:
    parts, more = STORIES[story]
    assert "stuck" in explored(parts, Rules(**{off: False}), **more).holes
