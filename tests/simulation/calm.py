"""Liveness: once faults are off, everything that is runnable ends within a bound, and nothing is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray_agents.ledger import Held
from fray_coordinator.protocol.transitions import TERMINAL
from fray_layouts.names import Inbox
from tests.simulation.invariants import Broken, told

if TYPE_CHECKING:
    from tests.simulation.world import World

BOUND = 1500.0
"""Virtual seconds from the end of the last fault in which every runnable job has ended and the inbox is empty."""

LATE = 250.0
"""Virtual seconds in which the last writes of the storm have landed and the repair has seen what came of them."""

A_WHILE = 30.0
"""Virtual seconds in which a claim is resolved when nothing goes wrong."""

REST = 4500.0
"""Virtual seconds after which retention has removed what ended."""


def settled(world: World) -> bool:
    """Whether every job has ended and nothing waits."""
    jobs = world.watching.jobs
    return all(job.status in TERMINAL for job in jobs.values()) and not _drops(world)


def explain(world: World) -> None:
    """Raises: the bound has passed."""
    for job in world.watching.jobs.values():
        if job.status not in TERMINAL:
            name = "every runnable job ends"
            if job.parent and (parent := world.watching.jobs.get(job.parent.job)) and parent.status in TERMINAL:
                name = "no orphaned child"
            elif job.stop is not None:
                name = "mail is not lost"
            about = [job.id] + ([job.lease.agent] if job.lease else [])
            raise Broken(name, f"{job.id} is {told(job)} {BOUND:g} s after the last fault", *about)
    raise Broken("every drop is dealt with", f"{_drops(world)} still lie in the inbox", *_drops(world))


def check(world: World) -> None:
    """What must hold soon after everything has ended."""
    for job in world.known_jobs:
        if job not in world.watching.jobs and f"jobs/{job}.json" not in world.watching.gone:
            raise Broken("what was acknowledged is stored", f"{job} has no record", job)
    for host in world.hosts:
        for task in host.running:
            message = f"the task of {task.run.job}~{task.run.attempt} still runs on {host.name}"
            raise Broken("no task outlives its job", message, task.run.job)
    for job, attempts in world.watching.entries.items():
        if attempts and job in world.watching.jobs:
            raise Broken("no entry outlives its job", f"{job} has ended, and its entries {attempts} are left", job)


def check_held(world: World) -> None:
    """Nobody holds anything for long, but to look at an entry whose record was never written."""
    before = _held(world)
    world.loop.advance(world.loop.now + A_WHILE)
    after = [id(held) for _, held in _held(world)]
    for agent, held in before:
        if id(held) in after:
            job = held.entry.job
            raise Broken("nothing is held for ever", f"{agent} still holds {job}: {held.phase}", job, agent)


def _held(world: World) -> list[tuple[str, Held]]:
    agents = [host.agent for host in world.hosts if host.agent is not None]
    return [(agent.id, held) for agent in agents for held in agent._ledger.held.values()]


def check_rest(world: World) -> None:
    """What retention must have removed."""
    keys = world.storage.contents.keys
    for prefix in ("jobs/", "children/", "pending/", "work/", "inbox/"):
        left = list(keys(prefix, None))
        if left:
            raise Broken("retention removes what ended", f"{len(left)} objects are left, such as {left[0]}", left[0])


def _drops(world: World) -> list[str]:
    return [key for key in world.storage.contents.keys(Inbox.prefix, None) if Inbox.is_drop(key)]
