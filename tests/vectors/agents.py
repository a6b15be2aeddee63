"""What is decided by agents: which entries they may claim, when they send heartbeats, and when tasks must end."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fray_coordinator.protocol import heartbeat
from fray_coordinator.protocol.scheduling import HostKind, shortage
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import ClusterSettings, Resources, Software
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
        "input: the shape of an entry, and an agent's `free`, `preemptible`, `inbound`, `software`. "
        "expected: whether the agent may claim the entry",
        cases,
    )


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
