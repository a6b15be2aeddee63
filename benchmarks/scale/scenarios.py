"""The scenarios of a fleet, and their figures."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scale import gangs, traffic
from benchmarks.scale.fleet import Fleet, job_spec
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.jobs.submission import submit
from fray_layouts.object_keys import AgentKeys

MONTH = 30 * 86400.0
JOINING = 60.0
"""Seconds over which the agents of a fleet come up."""

CALM = 300.0
"""Seconds after which every agent knows the fleet, and uses its longest intervals for polls and heartbeats."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the run is. seconds: how long an idle fleet is watched; gang: hosts of a gang."""

    agents: int
    jobs: int
    seconds: float
    submitters: int
    gang: int


async def drain(fleet: Fleet, size: Size) -> dict[str, Any]:
    """Queued jobs are drained by a fleet that has just come up."""
    fleet.enqueue(size.jobs, over=600.0)
    begun = fleet.clock.boottime()
    mean = sum(fleet.tasks) / 2
    ideal = size.jobs * mean / (size.agents * fleet.slots)
    await fleet.join(size.agents, JOINING)
    finished = await _all_ended(fleet, size.jobs, 20 * ideal + 3600.0)
    took = fleet.clock.boottime() - begun
    won, rejected = fleet.claims()
    return {
        "jobs": size.jobs,
        "finished": finished,
        "seconds": round(took, 1),
        "ideal_seconds": round(ideal, 1),
        "times_ideal": round(took / ideal, 2),
        "claims_won": won,
        "rejected_per_won": round(rejected / max(won, 1), 3),
        "dollars_per_million_jobs": traffic.dollars(fleet.storage, 1e6 / max(finished, 1)),
        "requests_per_job": traffic.totals(fleet.storage, max(finished, 1)),
        **traffic.figures(fleet.storage, begun, fleet.clock.boottime()),
    }


async def burst(fleet: Fleet, size: Size) -> dict[str, Any]:
    """Several submitters submit all jobs to an idle fleet within a minute, as far as they can.

    It ends when the last submission has returned; `drain` says how long the jobs then take.
    """
    await fleet.join(size.agents, JOINING)
    await fleet.clock.sleep(CALM)
    fleet.storage.forget()
    begun = fleet.clock.boottime()
    each = size.jobs // size.submitters
    cores = [(await fleet.core())[0] for _ in range(size.submitters)]
    failed = await asyncio.gather(*(_submit_within_a_minute(core, each) for core in cores))
    took = fleet.clock.boottime() - begun
    finished = len(fleet.storage.commits)
    return {
        "jobs": size.submitters * each,
        "finished_meanwhile": finished,
        "submitters": size.submitters,
        "submitted_seconds": round(took, 1),
        "failed_submissions": sum(failed),
        "first_end_after": round(fleet.storage.commits[0] - begun, 1) if fleet.storage.commits else None,
        "requests_per_job": traffic.totals(fleet.storage, size.submitters * each),
        **traffic.figures(fleet.storage, begun, fleet.clock.boottime()),
    }


async def idle(fleet: Fleet, size: Size) -> dict[str, Any]:
    """A fleet without work."""
    await fleet.join(size.agents, JOINING)
    await fleet.clock.sleep(CALM)
    fleet.storage.forget()
    begun = fleet.clock.boottime()
    await fleet.clock.sleep(size.seconds)
    months = size.agents * size.seconds / MONTH
    return {
        "seconds": size.seconds,
        "dollars_per_idle_agent_month": traffic.dollars(fleet.storage, 1 / months),
        **traffic.figures(fleet.storage, begun, fleet.clock.boottime()),
    }


async def deaths(fleet: Fleet, size: Size) -> dict[str, Any]:
    """One in a hundred of a busy fleet's agents die within a minute."""
    fleet.tasks = (1e9, 1e9)
    fleet.enqueue(size.agents * fleet.slots, over=600.0)
    await fleet.join(size.agents, JOINING)
    await fleet.clock.sleep(CALM)
    fleet.storage.forget()
    begun = fleet.clock.boottime()
    rng = random.Random(fleet.seed)
    died: dict[str, float] = {}
    doomed = rng.sample(fleet.members, max(3, size.agents // 100))
    for member in doomed:
        await fleet.clock.sleep(60.0 / len(doomed))
        member.connection.silent = True
        died[AgentKeys.key(member.agent.id)] = fleet.clock.boottime()
    patience = begun + 3600.0
    while not died.keys() <= fleet.storage.deaths.keys() and fleet.clock.boottime() < patience:
        await fleet.clock.sleep(1.0)
    waits = [fleet.storage.deaths[key] - at for key, at in died.items() if key in fleet.storage.deaths]
    return {
        "died": len(died),
        "detected": len(waits),
        "detection_seconds": _spread(waits),
        **traffic.figures(fleet.storage, begun, fleet.clock.boottime()),
    }


async def gang(fleet: Fleet, size: Size) -> dict[str, Any]:
    """A gang forms in an idle fleet, and again after it has lost a host with notice and then one without."""
    await fleet.join(size.agents, JOINING)
    await fleet.clock.sleep(CALM)
    gang, formed = await gangs.gathered(fleet, size.gang)
    return {
        "hosts": size.gang,
        "hints": fleet.hints,
        "formed": formed,
        "formed_again_after_notice": await gangs.preempted(fleet, gang, size.gang),
        "formed_again_after_death": await gangs.bereaved(fleet, gang, size.gang),
    }


async def crowd(fleet: Fleet, size: Size) -> dict[str, Any]:
    """A gang forms in a fleet whose hosts all run single jobs, while more of these wait, and then loses a host."""
    fleet.enqueue(size.jobs, over=600.0)
    await fleet.join(size.agents, JOINING)
    gang, formed = await gangs.gathered(fleet, size.gang, priority=1)
    return {
        "hosts": size.gang,
        "hints": fleet.hints,
        "singles": size.jobs,
        "longest_single": fleet.tasks[1],
        "formed_with_singles_in_the_way": formed,
        "formed_again_after_notice": await gangs.preempted(fleet, gang, size.gang),
    }


SCENARIOS = {"drain": drain, "burst": burst, "idle": idle, "deaths": deaths, "gang": gang, "crowd": crowd}


async def _all_ended(fleet: Fleet, jobs: int, patience: float) -> int:
    """Wait for all jobs to end, and print their progress on stderr each virtual minute; return how many have ended."""
    begun = fleet.clock.boottime()
    told = begun
    while (ended := len(fleet.storage.commits)) < jobs and fleet.clock.boottime() < begun + patience:
        if fleet.clock.boottime() >= told + 60.0:
            told = fleet.clock.boottime()
            print(f"{told:.0f} s: {ended} of {jobs} jobs ended; claims {fleet.claims()}", file=sys.stderr, flush=True)
        await fleet.clock.sleep(1.0)
    return ended


async def _submit_within_a_minute(core: Core, jobs: int) -> int:
    """Submit in batches, one a second if the storage keeps up; return how many were refused."""
    failed, begun, batch = 0, core.clock.boottime(), -(-jobs // 60)
    for second, first in enumerate(range(0, jobs, batch)):
        count = min(batch, jobs - first)
        try:
            await submit(core, [job_spec()] * count)
        except StoreUnavailable:
            failed += count
        await core.clock.sleep(max(0.0, begun + second + 1 - core.clock.boottime()))
    return failed


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        "min": round(ordered[0], 1),
        "median": round(statistics.median(ordered), 1),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 1),
        "max": round(ordered[-1], 1),
    }
