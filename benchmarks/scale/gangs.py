"""A gang of many hosts in a large fleet: the time until it runs, and its requests beyond those of the idle fleet."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from benchmarks.scale import traffic
from benchmarks.scale.fleet import Fleet, Member, job_spec
from fray_coordinator.jobs.submission import submit
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord

BACKGROUND = 60.0
"""Seconds for which the idle fleet is watched first."""

LATE_EXITS = 30.0
"""Seconds in which an ended attempt writes the exits that nobody waits for, with gangs of up to 3,000."""

PATIENCE = 1800.0


@dataclass(slots=True)
class Watch:
    """Counts the requests to the bucket from now on, beyond `usual`, those of the `BACKGROUND` seconds before."""

    fleet: Fleet
    begun: float
    usual: Counter[tuple[str, str]]

    @classmethod
    async def begin(cls, fleet: Fleet) -> Watch:
        """Watch the fleet once earlier work is over, then begin to count."""
        await fleet.clock.sleep(LATE_EXITS)
        fleet.storage.forget()
        await fleet.clock.sleep(BACKGROUND)
        usual = traffic.served(fleet.storage)
        fleet.storage.forget()
        return cls(fleet, fleet.clock.boottime(), usual)

    async def until_all_run(self, gang: str, attempt: int, replicas: int) -> dict[str, Any]:
        """Wait until all replicas of an attempt run; return the seconds and requests of that."""
        starts = self.fleet.replicas[gang, attempt]
        while len(starts) < replicas and self.seconds() < PATIENCE:
            await self.fleet.clock.sleep(0.1)
        share = self.seconds() / BACKGROUND
        asked = traffic.served(self.fleet.storage)
        beyond = {of: round(count - share * self.usual[of]) for of, count in sorted(asked.items())}

        def total(*kinds: str) -> int:
            return sum(count for (_, kind), count in beyond.items() if kind in kinds)

        busiest = traffic.figures(self.fleet.storage, self.begun, self.fleet.clock.boottime())
        figures = {
            "running": len(starts),
            "first_after": round(min(starts, default=self.begun) - self.begun, 2),
            "all_after": round(max(starts, default=self.begun) - self.begun, 2),
            "writes_and_lists": total("writes", "lists"),
            "reads": total("reads"),
            "beyond_the_usual": {f"{prefix} {kind}": count for (prefix, kind), count in beyond.items() if count},
            "peak_of_limit": busiest["peak_of_limit"],
            "busiest_second": busiest["busiest_second"],
            "throttled": busiest["throttled"],
        }
        print(
            f"{self.fleet.clock.boottime():.0f} s: attempt {attempt} of {gang}: {figures}", file=sys.stderr, flush=True
        )
        return figures

    def seconds(self) -> float:
        return self.fleet.clock.boottime() - self.begun


async def gathered(fleet: Fleet, replicas: int, priority: int = 0) -> tuple[str, dict[str, Any]]:
    """Submit a gang of `replicas` hosts and wait until it runs; return its id and figures."""
    core, _ = await fleet.core()
    watch = await Watch.begin(fleet)
    (submitted,) = await submit(core, [replace(job_spec(), name="gang", replicas=replicas, priority=priority)])
    fleet.hint_reconciler()
    return submitted.job.id, await watch.until_all_run(submitted.job.id, 1, replicas)


async def preempted(fleet: Fleet, gang: str, replicas: int) -> dict[str, Any]:
    """Take away the host of one replica of the first attempt, with notice, and wait until all run again."""
    member = await _member_of(fleet, gang)
    watch = await Watch.begin(fleet)
    member.agent.terminate()
    return await watch.until_all_run(gang, 2, replicas)


async def bereaved(fleet: Fleet, gang: str, replicas: int) -> dict[str, Any]:
    """Let the host of one replica of the second attempt vanish without notice, and wait until all run again."""
    member = await _member_of(fleet, gang)
    watch = await Watch.begin(fleet)
    member.connection.silent = True
    return await watch.until_all_run(gang, 3, replicas)


async def _member_of(fleet: Fleet, gang: str) -> Member:
    """An agent that runs a replica of the gang."""
    core, _ = await fleet.core()
    job = await core.records.read(JobKeys.key(gang), JobRecord)
    assert job is not None
    assert job.record.placement is not None
    agent = job.record.placement.members[-1].agent
    return next(member for member in fleet.members if member.agent.id == agent)
