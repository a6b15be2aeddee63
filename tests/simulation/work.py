"""The behaviour of simulated jobs, by the first part of their name and by chance.

`script` says how long an attempt takes and how it ends. It depends only on seed, job and attempt, so a job does the
same wherever it runs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from fray_agents.host.capacity import HostPlace
from fray_layouts.spec import JobSpec
from tests.simulation.scenario import People

KINDS = {
    "quick": 8,
    "long": 3,
    "flaky": 3,
    "failing": 1,
    "chatty": 3,
    "big": 1,
    "parent": 3,
}
"""How often users submit each harmless kind that ends by itself."""

OF_CHILDREN = ["quick", "quick", "long", "flaky", "endless"]


@dataclass(frozen=True, slots=True)
class Script:
    """One attempt, if nothing disturbs it.

    Attributes:
        seconds: how long it takes.
        fails: whether it ends with exit code 1.
        chunks: number of its log chunks.
        result_size: bytes of its result.
        at_sigterm: what it does at SIGTERM: "dies", "finishes" (well, within a second) or "goes on".
        children: how many it launches.
        kills_host_after: seconds after which it kills its host; None: never.
        waits: it does not end by itself before its children have, as far as these end by themselves.
    """

    seconds: float
    fails: bool
    chunks: int
    result_size: int
    at_sigterm: str
    children: int
    kills_host_after: float | None
    waits: bool = False


def script(seed: str, name: str, job: str, attempt: int) -> Script:
    """What this attempt does."""
    kind = name.partition("-")[0]
    draw = random.Random(f"work {seed} {job} {attempt}")
    seconds = (
        draw.uniform(20, 90)
        if kind in ("long", "parent")
        else draw.choice([draw.uniform(0.05, 1), draw.uniform(1, 20)])
    )
    hangs = kind == "endless" or (kind == "timed" and random.Random(f"hangs {seed} {job} {attempt}").random() < 0.6)
    return Script(
        seconds=1e9 if hangs else seconds,
        fails=kind == "failing" or (kind == "flaky" and draw.random() < 0.5),
        chunks=draw.randint(1, 3) if kind == "chatty" else 0,
        result_size=70_000 if kind == "big" else 0,
        at_sigterm="goes on" if kind == "stubborn" else draw.choice(["dies", "dies", "finishes", "goes on"]),
        children=draw.randint(1, 3) if kind == "parent" else 0,
        kills_host_after=draw.uniform(0.5, 8.0) if kind == "killer" else None,
    )


def is_hopeless(seed: str, name: str, job: str) -> bool:
    """Whether no host can build the job's environment."""
    return name.partition("-")[0] == "failing" and random.Random(f"environment {seed} {job}").random() < 0.5


def drawn_kind(draw: random.Random, people: People) -> str:
    """Draw the kind of a user's job."""
    harmless = sum(KINDS.values()) / (1 - people.killers - people.stubborn)
    kinds = KINDS | {"stubborn": people.stubborn * harmless, "killer": people.killers * harmless}
    return draw.choices(list(kinds), list(kinds.values()))[0]


def drawn_spec(draw: random.Random, kind: str) -> dict[str, Any]:
    """A spec as a user writes it."""
    spec: dict[str, Any] = {
        "name": kind,
        "entrypoint": {"command": ["simulated"]},
        "grace": draw.choice([0.0, 2.0, 10.0]),
    }
    spec["resources"] = {"cpu": draw.choice([0.5, 1.0, 1.0, 2.0])}
    if kind in ("big", "chatty"):
        spec["outputs"] = ["model"]
    if kind in ("flaky", "failing"):
        spec["max_retries_failure"] = draw.randint(0, 3)
    if draw.random() < 0.1:
        spec["priority"] = draw.randint(-5, 5)
    if draw.random() < 0.05:
        spec["pending_timeout"] = draw.uniform(20, 300)
    return spec


ZONES, REGIONS, DISKS = ("z0", "z1"), ("r0", "r1"), ("ssd", "hdd")
"""The places and labels of hosts."""


def drawn_place(draw: random.Random) -> HostPlace:
    """The place of a host. Some operators name none."""
    labels = {"disk": draw.choice(DISKS)} if draw.random() < 0.7 else {}
    return HostPlace(zone=draw.choice(("", *ZONES)), region=draw.choice(REGIONS), labels=labels)


def drawn_placed(draw: random.Random) -> dict[str, Any]:
    """The spec of a job that may run on some hosts only, or on none."""
    spec = drawn_spec(draw, "placed")
    wishes = {"regions": [draw.choice(REGIONS)], "zone": draw.choice(ZONES), "labels": {"disk": draw.choice(DISKS)}}
    for wish in draw.sample(sorted(wishes), draw.choice([1, 1, 1, 2])):
        spec["resources"][wish] = wishes[wish]
    return spec


def is_place_for(spec: JobSpec, place: HostPlace) -> bool:
    """Whether the job may run there."""
    wants = spec.resources
    in_region = not wants.regions or place.region in wants.regions
    return in_region and wants.zone in ("", place.zone) and wants.labels.items() <= place.labels.items()


def drawn_children(seed: str, job: str, attempt: int, how_many: int) -> list[dict[str, Any]]:
    """The specs of a parent's children: some with ids of their own, which its next attempt adopts; some detached."""
    specs = []
    for number in range(how_many):
        draw = random.Random(f"child {seed} {job} {number}")
        spec = drawn_spec(draw, draw.choice(OF_CHILDREN))
        spec |= {"parent": job, "resources": {"cpu": 0.5}}
        if draw.random() < 0.5:
            spec["id"] = f"of.{job[-9:]}.{number}"
        if draw.random() < 0.2 and spec["name"] != "endless":
            spec["detached"] = True
        specs.append(spec)
    return specs
