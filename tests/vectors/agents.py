"""What is decided by agents: which entries they may claim, when they send heartbeats, and when tasks must end."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from fray_coordinator.protocol import heartbeat
from fray_coordinator.protocol.environments import python_shortage
from fray_coordinator.protocol.scheduling import HostKind, elsewhere, kind_of_host, shape_of, shortage
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import AgentRecord, ClusterSettings, Resources, Software
from fray_layouts.spec_parsing import parse_spec
from tests.vectors.form import File, plain

SETTINGS = ClusterSettings()


def _fits() -> File:
    free = Resources(cpu=4000, memory=2**30, disk=0, device="gpu-h100", device_count=4)
    shapes = [
        "c4000m1024d0",
        "c4001m0d0",
        "c0m1025d0",
        "c0m0d1",
        "c0m0d0g4gpu",
        "c0m0d0g5gpu-h100",
        "c0m0d0g1gpu-h1",
    ]
    cases: dict[str, Any] = {}
    for shape, host in [
        *((shape, HostKind()) for shape in shapes),
        ("c0m0d0o", HostKind(preemptible=True)),
        ("c0m0d0a", HostKind(inbound=False)),
        ("c0m0d0oaeig1gpu", HostKind()),
        ("c0m0d0e", HostKind(packages=False)),
        ("c0m0d0i", HostKind(containers=False)),
    ]:
        entry = PendingKey.parse(f"pending/default/4991kdvdna00-a-1~1~{shape}")
        assert entry is not None
        software = Software(pythons=["3.11"] * host.packages, containers="podman" * host.containers)
        told = {"preemptible": host.preemptible, "inbound": host.inbound, "software": plain(software)}
        cases[f"{shape} on {told}"] = (
            {"shape": shape, "free": plain(free), **told},
            not shortage(entry.shape, free, host),
        )
    shared = replace(free, device_count=0, device_shares=[250, 500])
    for part, here in (("0.5", free), ("0.5", shared), ("0.501", shared), ("1", shared)):
        entry = PendingKey.parse(f"pending/default/4991kdvdna00-a-1~1~c0m0d0g{part}gpu")
        assert entry is not None
        case = f"{part} of a GPU where {here.device_count} are free and {here.device_shares} of others"
        given = {"shape": f"c0m0d0g{part}gpu", "free": plain(here)}
        cases[case] = given, not shortage(entry.shape, here, HostKind(packages=False, containers=False))
    return File(
        "input: the shape of an entry, or a spec, and what the agent's record says: `free`, `preemptible`, `inbound`, "
        "`software`, `zone`, `region`, `labels`. expected: whether such an agent may claim the job, provided that it "
        "does what the contract says about the spec's fields; if it does not, it leaves the job alone",
        cases | _by_spec(),
    )


WORKSPACE = {"blob": f"blobs/2026-01/{'0' * 64}"}
HERE = {"zone": "z-1", "region": "r-1", "labels": {"tier": "a", "disk": "ssd"}}
BARE, FULL = {"python": "3.11"}, {"python": "3.11", "pythons": ["3.11", "3.12"], "containers": "podman"}


def _by_spec() -> dict[str, Any]:
    """What a spec asks for beside amounts and devices: each on an agent that has it, and on one that lacks it."""
    asked: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
        "zone": ({"resources": {"zone": "z-1"}}, [{"zone": "z-1"}, {"zone": "z-2"}, {}]),
        "regions": ({"resources": {"regions": ["r-0", "r-1"]}}, [{"region": "r-1"}, {"region": "r-2"}, {}]),
        "labels": (
            {"resources": {"labels": {"tier": "a", "disk": "ssd"}}},
            [HERE, {"labels": {"tier": "a"}}, {"labels": {"tier": "b", "disk": "ssd"}}, {}],
        ),
        "nothing of these": ({}, [HERE, {}]),
        "image": ({"environment": {"docker_image": "a:1"}}, [{"software": FULL}, {"software": BARE}]),
        "packages": ({"environment": {"pip_packages": ["a"]}}, [{"software": FULL}, {"software": BARE}]),
        "extras": ({"environment": {"extras": ["a"]}}, [{"software": FULL}, {"software": BARE}]),
        "groups": ({"environment": {"groups": ["a"]}}, [{"software": FULL}, {"software": BARE}]),
        "workspace with dependencies": (
            {"environment": {"workspace": {**WORKSPACE, "dependencies": "uv.lock"}}},
            [{"software": FULL}, {"software": BARE}],
        ),
        "workspace": ({"environment": {"workspace": WORKSPACE}}, [{"software": BARE}]),
        "python": ({"environment": {"python": ">=3.12"}}, [{"software": FULL}, {"software": BARE}]),
        "ports": ({"ports": ["http"]}, [{}]),
        "outputs": ({"outputs": ["*.txt"]}, [{}]),
    }
    return {f"{name} on {about}": _claimable(spec, about) for name, (spec, hosts) in asked.items() for about in hosts}


def _claimable(spec: dict[str, Any], about: dict[str, Any]) -> tuple[Any, bool]:
    free = Resources(cpu=4000, memory=2**30, disk=2**30)
    told = {"free": plain(free), **about}
    agent = msgspec.convert({"id": "h-1", "host": "h", "pool": "default", **told}, AgentRecord)
    full = parse_spec({"name": "a", "entrypoint": {"command": ["true"]}, **spec})
    lacks = shortage(shape_of(full), agent.free, kind_of_host(agent)) + elsewhere(full.resources, agent)
    return {"spec": spec, **told}, not (lacks or python_shortage(full, agent.software))


def _beats() -> File:
    cases: dict[str, Any] = {}
    for busy, live in (
        (True, 1),
        (True, 101),
        (True, 1001),
        (True, 100_000),
        (False, 1),
        (False, 1001),
        (False, 100_000),
    ):
        interval = heartbeat.beat_interval(busy, live, SETTINGS)
        cases[f"{'busy' if busy else 'idle'}, one of {live}"] = (
            {"busy": busy, "live_agents": live},
            {
                "interval": interval,
                "trusted_for": heartbeat.trusted_until(0.0, interval),
                "declared_dead_after": heartbeat.DEATH_INTERVALS * interval,
            },
        )
    return File(
        "input: whether an agent holds anything, and how many agents live; with the settings' defaults. "
        "expected: the interval that the agent promises, and how long the agent (from the first sending "
        "of the heartbeat) and observers then wait",
        cases,
    )


def _deadlines() -> File:
    cases = {}
    for now, is_actor in (
        (0.0, False),
        (9.9, False),
        (10.0, False),
        (100.0, False),
        (914.0, False),
        (1000.0, False),
        (14.0, True),
    ):
        at = heartbeat.task_deadline(now, 15.0, SETTINGS, is_actor)
        cases[f"{now:g} s, {'an actor' if is_actor else 'no actor'}"] = (
            {"now": now, "trusted_until": 15.0, "actor": is_actor},
            at,
        )
    return File(
        "input: the agent's clock and the end of its trust. expected: the time until which a task may run "
        "if the agent is not heard of any more",
        cases,
    )


FILES = {
    "fits": _fits,
    "beats": _beats,
    "deadlines": _deadlines,
}
