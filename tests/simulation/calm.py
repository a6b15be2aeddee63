"""Liveness: once faults are off, everything that is runnable ends within a bound, and nothing is left behind."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from fray_agents.ledger import Held
from fray_coordinator.protocol.transitions import TERMINAL
from fray_layouts.names import Child, Inbox
from fray_layouts.records import Settings
from tests.simulation.invariants import Broken, told

if TYPE_CHECKING:
    from tests.simulation.world import World

BOUND = 1500.0
"""Virtual seconds from the last fault, or from what ended last, in which something more ends, unless all has ended.

A small cluster has more to do than that when its one sound host is killed again and again; but it is never idle.
"""

LATE = 250.0
"""Virtual seconds in which the last writes of the storm have landed and the repair has seen what came of them."""

A_WHILE = 30.0
"""Virtual seconds in which a claim is resolved when nothing goes wrong."""

QUIET, IDLE = 90.0, 300.0
"""Virtual seconds until an agent without work looks as rarely as ever, and in which its requests are counted."""

LONGEST_LOOK = 5
"""Poll intervals between two looks of an idle agent at the doorbell."""

JITTER = 0.8 * 0.99
"""How much sooner than after its interval something may happen: the jitter, on a clock that is too fast."""

REST = 4500.0
"""Virtual seconds after which retention has removed what ended."""


def left(world: World) -> set[str]:
    """Jobs that have not ended and drops that wait."""
    return {job.id for job in world.watching.jobs.values() if job.status not in TERMINAL}.union(_drops(world))


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
            raise Broken(name, f"{job.id} is {told(job)}, and nothing has ended for {BOUND:g} s", *about)
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


def check_idle(world: World) -> None:
    """A cluster that has nothing to do asks for what docs/operating.md prices, and for nothing else.

    It has something to do while there are entries whose submitter was lost before it wrote the record.
    """
    keys = world.storage.contents.keys
    children = (Child.parse(key) for key in keys("children/", None))
    if list(keys("pending/", None)) or any(child and child.child not in world.watching.jobs for child in children):
        return
    world.loop.advance(world.loop.now + QUIET)
    before = _sent(world)
    world.loop.advance(world.loop.now + IDLE)
    budget = _budget(sum(host.agent is not None for host in world.hosts))
    for request, sent in (_sent(world) - before).items():
        if sent > budget[request]:
            message = f"{sent} times {' '.join(request)} in {IDLE:g} s, and {budget[request]} are stated"
            raise Broken("an idle cluster asks for what is stated", message, *(host.name for host in world.hosts))


def _sent(world: World) -> Counter[tuple[str, str]]:
    return sum((way.sent for way in world.ways.values()), Counter())


def _budget(agents: int) -> Counter[tuple[str, str]]:
    """Requests in `IDLE` seconds, by verb and area: of every agent, and of the one that runs the pass."""
    s = Settings()
    of_each = {
        ("put", "agents"): s.idle_beat_interval,
        ("get", "agents"): s.idle_beat_interval,  # the pass reads what has changed
        ("get", "pools"): LONGEST_LOOK * s.poll_interval,
        ("get", "coordinator"): s.pass_interval,
        ("list", "pending"): s.repair_interval,
    }
    of_the_pass = dict.fromkeys([("list", "agents"), ("list", "inbox"), ("put", "coordinator")], s.pass_interval)
    of_the_pass |= {("list", area): s.repair_interval for area in ("jobs", "pending", "children", "actors")}
    budget: Counter[tuple[str, str]] = Counter()
    for interval_of, how_many in ((of_each, agents), (of_the_pass, 1)):
        for request, interval in interval_of.items():
            budget[request] += how_many * math.ceil(IDLE / (interval * JITTER))
    return budget


def check_rest(world: World) -> None:
    """What retention must have removed."""
    keys = world.storage.contents.keys
    for prefix in ("jobs/", "children/", "pending/", "work/", "inbox/"):
        left = list(keys(prefix, None))
        if left:
            raise Broken("retention removes what ended", f"{len(left)} objects are left, such as {left[0]}", left[0])


def _drops(world: World) -> list[str]:
    return [key for key in world.storage.contents.keys(Inbox.prefix, None) if Inbox.is_drop(key)]
