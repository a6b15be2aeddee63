"""Liveness: once faults are off, everything that is runnable ends within a bound, and nothing is left behind."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from fray_agents.agent.agent import Agent
from fray_agents.agent.held import HeldLease, HeldPlacement
from fray_coordinator.protocol.dropped_jobs import UNLISTED_BEATS
from fray_coordinator.protocol.heartbeat import max_interval
from fray_coordinator.protocol.placements.owners import RESERVATION
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_coordinator.reconcile.repair import POOL_SWEEP_INTERVAL
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.index_keys import ChildKey, PlacementKey
from fray_layouts.object_keys import JobKeys, ReservationKeys
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.states import AgentState
from fray_layouts.work_keys import WorkKeys
from tests.simulation.invariants import Broken, job_named_by, told

if TYPE_CHECKING:
    from tests.simulation.world import World

BOUND = 4000.0
"""Virtual seconds from the last fault, or from what ended last, in which something more ends, unless all has ended.

A small cluster has more to do than that when its one sound host is killed again and again; but it is never idle. What
takes longest, if all of it comes in a row: hosts are back after 200 s; that idle agents died is found after 300 s, or
after 600 if they were many; an agent whose record cannot be read is written off after 1,200 s, and one whose state is
unknown is found dead after 1,200, or 2,400 if they were many; a back-off and a host to avoid, a minute each; two
repairs; and the longest job, 90 s. That is 3,550 s, without jitter and drift.
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

REMOVED = 700.0
"""Virtual seconds after its time in which retention has removed what ended; until an agent's death is found, too."""

AT_EASE = 60.0
"""Virtual seconds after the last fault in which requests and retries that began before it are over."""

PASSES_GO_ON, REPAIRS_GO_ON = 300.0, 450.0
"""Virtual seconds in which a pass, and a repair, ends, also if whoever ran the last one has just gone down."""

TAKEN_BACK = 400.0
"""Virtual seconds after which a running job that its holder does not list is pending again: two repairs look at it.
Of a holder in a state that is not known two of the longest intervals are waited out before."""

LONGEST_GRACE = 10.0

HEARD = LONGEST_GRACE + A_WHILE
"""Virtual seconds from a wish that a job end until it has ended: its mail is read between two beats."""

HEARD_ANYWAY = LONGEST_GRACE + A_WHILE + 2 * 1.2 * ClusterSettings().repair_interval
"""The same if its mail was lost: its agent reads it again, at the latest the second time from now."""


def left(world: World) -> set[str]:
    """Jobs that have not ended and drops that wait."""
    return {job.id for job in _unfinished(world)}.union(_drops(world))


def _unfinished(world: World) -> list[JobRecord]:
    """Jobs that have not ended, but for those that nobody can end while odd objects lie where they do."""
    jobs = world.watching.jobs.values()
    return [job for job in jobs if job.status not in TERMINAL and not world.strangers.excuses(job)]


def explain(world: World) -> None:
    """Raises: the bound has passed."""
    for job in _unfinished(world):
        name = "every runnable job ends"
        if job.parent and (parent := world.watching.jobs.get(job.parent.job)) and parent.status in TERMINAL:
            name = "no orphaned child"
        about = [job.id] + ([job.lease.agent] if job.lease else [])
        raise Broken(name, f"{job.id} is {told(job)}, and nothing has ended for {BOUND:g} s", *about)
    raise Broken("every drop is dealt with", f"{_drops(world)} still lie in the inbox", *_drops(world))


def check(world: World) -> None:
    """What must hold soon after everything has ended."""
    for job in world.known_jobs:
        if job in world.strangers.harmed:
            continue
        if job not in world.watching.jobs and f"jobs/{job}.json" not in world.watching.gone:
            raise Broken("what was acknowledged is stored", f"{job} has no record", job)
    for host in world.hosts:
        for task in host.running:
            message = f"the task of {task.run.job}~{task.run.attempt} still runs on {host.name}"
            raise Broken("no task outlives its job", message, task.run.job)
    check_entries(world)


def check_entries(world: World) -> None:
    """No job that has ended is looked for, also while odd objects lie there."""
    for job, attempts in world.watching.entries.items():
        record = world.watching.jobs.get(job)
        if attempts and record is not None and record.status in TERMINAL and job not in world.strangers.harmed:
            raise Broken("no entry outlives its job", f"{job} has ended, and its entries {attempts} are left", job)


def check_mail(world: World) -> None:
    """A wish that a job end is heard, also one whose mail was lost in the storm."""
    for job in world.watching.jobs.values():
        if job.id in world.strangers.harmed:
            continue
        if job.status != Status.RUNNING or job.stop is None or job.lease is None or not world.works(job.lease.agent):
            continue
        asked = world.watching.stopped[job.id]
        holder = world.watching.agents.get(job.lease.agent)
        takes_mail = holder is not None and holder.state == "live"
        bound = HEARD if asked > world.calm_since + AT_EASE and takes_mail else HEARD_ANYWAY
        if world.loop.now - max(asked, world.calm_since) > bound:
            message = f"{job.id} was asked to end at {asked:.1f} and is {told(job)}"
            raise Broken("mail is not lost", message, job.id, job.lease.agent)


def check_services(world: World) -> None:
    """Whatever lies under the root, the pass and its repair go on, and nobody holds what he does not list."""
    now, passed, repaired = world.loop.now, world.watching.passed, world.watching.repaired
    if now - max(passed, world.calm_since) > PASSES_GO_ON:
        raise Broken("the pass goes on", f"none has ended since {passed:.1f}", *(host.name for host in world.hosts))
    if now - max(repaired, world.calm_since) > REPAIRS_GO_ON:
        raise Broken("the repair goes on", f"none has ended since {repaired:.1f}", *(host.name for host in world.hosts))
    world.watching.note_unlisted()
    for job, since in world.watching.unlisted.items():
        lease = world.watching.jobs[job].lease
        assert lease is not None, "it runs"
        holder = lease.agent
        known = world.watching.agents.get(holder)
        rarely = known is not None and known.state != AgentState.LIVE
        bound = TAKEN_BACK + (UNLISTED_BEATS * max_interval(ClusterSettings()) if rarely else 0.0)
        if world.loop.now - max(since, world.calm_since) > bound:
            message = f"{job} has not been in the hands of {holder} since {since:.1f}, and is still said to be"
            raise Broken("a running job is listed by its holder or taken back", message, job, holder)


def check_held(world: World) -> None:
    """Nobody holds anything for long, but to look at an entry whose record was never written."""
    before = _held(world)
    world.loop.advance(world.loop.now + A_WHILE)
    after = [id(held) for _, _, held in _held(world)]
    for agent, job, held in before:
        if id(held) in after:
            raise Broken("nothing is held for ever", f"{agent} still holds {job}: {held.phase}", job, agent)
    for left in _agents(world):
        free = left.member.leases.free()
        if free != left.member.leases.capacity:
            raise Broken("nothing is held for ever", f"{left.id} has {free} left", left.id)


def _held(world: World) -> list[tuple[str, str, HeldLease | HeldPlacement]]:
    held: list[tuple[str, str, HeldLease | HeldPlacement]] = []
    for agent in _agents(world):
        held += [(agent.id, job, lease) for job, lease in agent.member.leases.held.items()]
        held += [(agent.id, owner, placement) for owner, placement in agent.member.leases.placements.items()]
    return held


def _agents(world: World) -> list[Agent]:
    return [host.agent for host in world.hosts if host.agent is not None]


def check_idle(world: World) -> None:
    """A cluster that has nothing to do asks for what docs/operating.md prices, and for nothing else."""
    world.loop.advance(world.loop.now + QUIET)
    # While retention removes what ended, there is something to do.
    retained = world.scenario.quarantine + world.scenario.gives_up + REMOVED
    for _ in range(math.ceil(retained / IDLE)):
        before = _sent(world)
        world.loop.advance(world.loop.now + IDLE)
        requests = _sent(world) - before
        if not any(verb == "delete" for verb, _ in requests):
            break
    budget = _budget(sum(host.agent is not None for host in world.hosts))
    if world.storage.contents.keys(ReservationKeys.area, None):
        budget["list", "placements"] += math.ceil(IDLE / (ClusterSettings().repair_interval * JITTER))
    for request, sent in requests.items():
        if sent > budget[request]:
            message = f"{sent} times {' '.join(request)} in {IDLE:g} s, and {budget[request]} are stated"
            raise Broken("an idle cluster asks for what is stated", message, *(host.name for host in world.hosts))
    world.idle_counted += 1


def wait_out(world: World) -> None:
    """Until the entries are gone whose submitter was lost before it wrote the record; those of a group stay longest."""
    begin = world.loop.now
    while entries := _without_record(world):
        longest = world.scenario.quarantine + LATE
        longest += world.scenario.gives_up if _groups_without_record(world) else 0.0
        if world.loop.now - begin > longest:
            raise Broken("no entry outlives its job", f"{entries[0]} of a job that never was is left", entries[0])
        world.loop.advance(world.loop.now + A_WHILE)


def _without_record(world: World) -> list[str]:
    keys = world.storage.contents.keys
    children = ((key, ChildKey.parse(key)) for key in keys("children/", None))
    orphaned = [key for key, child in children if child and child.child not in world.watching.jobs]
    return [*keys("pending/", None), *orphaned, *_groups_without_record(world)]


def _groups_without_record(world: World) -> list[str]:
    """Entries of groups and reservations: the pass and the repair look for their records until they are given up."""
    keys = world.storage.contents.keys
    entries = ((key, PlacementKey.parse(key)) for key in keys(PlacementKey.area, None))
    owners = {key: ReservationKeys.key(entry.owner) for key, entry in entries if entry and entry.kind == RESERVATION}
    return [key for key, record in owners.items() if record not in world.storage.contents.objects]


def _sent(world: World) -> Counter[tuple[str, str]]:
    return sum((way.sent for way in world.ways.values()), Counter())


def _budget(agents: int) -> Counter[tuple[str, str]]:
    """Requests in `IDLE` seconds, by verb and area: of every agent, and of the one that runs the pass."""
    s = ClusterSettings()
    of_each = {
        ("put", "agents"): s.idle_beat_interval,
        ("get", "agents"): s.idle_beat_interval,  # the pass reads what has changed
        ("get", "pools"): LONGEST_LOOK * s.poll_interval,
        ("get", "coordinator"): s.pass_interval,
        ("list", "pending"): s.repair_interval,
    }
    of_the_pass = dict.fromkeys([("list", "agents"), ("list", "inbox"), ("put", "coordinator")], s.pass_interval)
    repaired = ("jobs", "pending", "children", "actors", "placements", "reservations")
    of_the_pass |= {("list", area): s.repair_interval for area in repaired}
    of_the_pass |= {("list", "names"): POOL_SWEEP_INTERVAL, ("get", "placements"): s.poll_interval}
    of_the_scheduler = {("list", "placements"): s.repair_interval}
    budget: Counter[tuple[str, str]] = Counter()
    for interval_of, how_many in ((of_each, agents), (of_the_pass, 1), (of_the_scheduler, 1)):
        for request, interval in interval_of.items():
            budget[request] += how_many * math.ceil(IDLE / (interval * JITTER))
    return budget


def check_fsck(world: World) -> None:
    """What everybody left behind fits together, but for attempts that a backup's record of their job has not seen.

    What live agents say of their hosts, which may be broken, is no trouble with what is stored.
    """
    for problem in world.troubles():
        area, _, rest = problem.key.partition("/")
        of_host = area == "agents" and problem.what.startswith("the agent says: ")
        if not of_host and (area != "work" or rest.partition("/")[0] not in world.strangers.harmed):
            raise Broken("fsck finds nothing", str(problem), problem.key)


def check_named(world: World) -> None:
    """Whoever asks `fray fsck` is told of everything odd."""
    if unnamed := world.strangers.unnamed(problem.key for problem in world.troubles()):
        raise Broken("every odd object is named", f"{len(unnamed)} are not, such as {unnamed[0]!r}", unnamed[0])


def check_rest(world: World) -> None:
    """What retention must have removed."""
    world.loop.advance(world.loop.now + world.scenario.quarantine + world.scenario.gives_up + REMOVED)
    left = [f"agents/{agent.id}" for agent in world.watching.agents.values() if agent.state != "live"]
    for prefix in ("jobs/", "children/", "pending/", "work/", "inbox/"):
        left += world.storage.contents.keys(prefix, None)
    harmed = tuple(WorkKeys.prefix(job) for job in world.strangers.harmed)  # without a record nobody removes it
    if left := [key for key in left if not key.startswith(harmed)]:
        raise Broken("retention removes what ended", f"{len(left)} objects are left, such as {left[0]}", left[0])


def _drops(world: World) -> list[str]:
    """Those that can be dealt with while odd objects lie where they do, such as where a drop's job should."""
    drops = [key for key in world.storage.contents.keys(InboxKeys.area, None) if InboxKeys.is_drop(key)]
    return [key for key in drops if world.strangers.is_readable(key) and not _is_job_odd(world, key)]


def _is_job_odd(world: World, drop: str) -> bool:
    lies = world.storage.contents.objects[drop]
    made = world.watching.made_of.get((drop, lies.version), ())
    return any(world.strangers.is_stranger(JobKeys.key(job)) for job in (*made, job_named_by(lies)))
