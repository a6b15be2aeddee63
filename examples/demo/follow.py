"""Watches the work from outside, and kills a machine in the middle of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from machines import Machine
from screen import Screen

from fray import JobId, JobInfo, JobStatus, StorageCluster

POLL_SECONDS = 0.5
KILL_AT = 0.3
"""Share of the shards that are done when the machine is killed."""


@dataclass
class Death:
    """A machine that was killed while it held jobs. noticed: seconds until all of them were requeued."""

    machine: Machine
    held: list[JobId]
    at: float
    noticed: float | None = None


def follow(cluster: StorageCluster, controller: JobId, both: Sequence[Machine], screen: Screen) -> Death:
    """Show the progress until the controller has ended; in between, kill the machine that does not run it."""
    death: Death | None = None
    while True:
        jobs = cluster.list_jobs()
        head = next(job for job in jobs if job.job_id == controller)
        shards = [job for job in jobs if job.name.startswith("shard-")]
        screen.shards(_done(shards), len(shards), _busy(shards, both))
        if death is None and _is_time(shards, victim := _other(both, head)):
            death = _kill(cluster, victim, screen)
        if death is not None and death.noticed is None and not _held_by(shards, death.machine, only=death.held):
            death.noticed = time.monotonic() - death.at
            anew = sum(job.attempt > 1 for job in shards if job.job_id in death.held)
            screen.say(
                f"{death.machine.name}'s death was noticed after {death.noticed:.1f} s; shards that begin anew: {anew}"
            )
        if head.status.finished():
            break
        time.sleep(POLL_SECONDS)
    if death is None:
        cluster.wait(controller, raise_on_failure=True)
        raise RuntimeError("the work was done before there was a moment to kill a machine; use more files")
    return death


def _is_time(shards: Sequence[JobInfo], victim: Machine) -> bool:
    return bool(shards) and _done(shards) >= KILL_AT * len(shards) and bool(_held_by(shards, victim))


def _kill(cluster: StorageCluster, victim: Machine, screen: Screen) -> Death:
    victim.kill()
    at = time.monotonic()
    held = _held_by(cluster.list_jobs(), victim)
    screen.say(f"killed {victim.name} with SIGKILL; shards in its hands: {len(held)}")
    return Death(victim, held, at)


def _done(shards: Sequence[JobInfo]) -> int:
    return sum(job.status is JobStatus.SUCCEEDED for job in shards)


def _held_by(jobs: Sequence[JobInfo], machine: Machine, only: Sequence[JobId] | None = None) -> list[JobId]:
    held = [job.job_id for job in jobs if job.status is JobStatus.RUNNING and job.agent == machine.id]
    return held if only is None else [job for job in held if job in only]


def _busy(shards: Sequence[JobInfo], both: Sequence[Machine]) -> str:
    return ", ".join(f"{machine.name} runs {len(_held_by(shards, machine))}" for machine in both)


def _other(both: Sequence[Machine], head: JobInfo) -> Machine:
    """The machine to kill: not the controller's, which would restart everything; this one repeats only its shards."""
    return next(machine for machine in both if machine.id != head.agent)
