"""Liveness: once faults are off, everything that can run ends within a bound, and nothing is left behind."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from fray_agents.agent.agent import Agent
from fray_agents.agent.held import HeldLease, HeldPlacement
from fray_agents.agent.membership import BEATS_PER_CHECK
from fray_coordinator.jobs.submission import new_record, submit_one
from fray_coordinator.protocol import role_lease
from fray_coordinator.protocol.failure_detection import UNLISTED_BEATS
from fray_coordinator.protocol.heartbeat import max_interval
from fray_coordinator.protocol.placements.owners import RESERVATION
from fray_coordinator.protocol.role_lease import QUIET_INTERVALS
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_coordinator.reconcile.admission import REJECTION_SWEEP_INTERVAL
from fray_coordinator.reconcile.repair import POOL_SWEEP_INTERVAL
from fray_layouts import codec
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey
from fray_layouts.object_keys import CoordinatorKeys, JobKeys, ReservationKeys
from fray_layouts.records import ClusterSettings, JobRecord, ReconcilerRecord
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import AgentState
from fray_layouts.work_keys import InboxKeys, WorkKeys
from tests.simulation.clocks import EPOCH, HostClock
from tests.simulation.invariants import Broken, job_named_by, told
from tests.simulation.loop import Participant

if TYPE_CHECKING:
    from tests.simulation.world import World

BOUND = 4000.0
"""Virtual seconds from the last fault, or the last end of a job, in which something more ends, unless all has ended.

A small cluster has more work than that when its only sound host is killed again and again, but it is never idle. The
longest sequence is: hosts come back after 200 s; the death of idle agents is found after 300 s, or after 600 if they
are many; an agent whose record cannot be read is given up after 1,200 s, and one whose state is unknown is found dead
after 1,200 s, or 2,400 if they are many; a back-off and an avoided host take a minute each; two repairs; and the
longest job takes 90 s. That is 3,550 s, without jitter and drift.
"""

LATE = 250.0
"""Virtual seconds in which the last writes of the storm have landed and the repair has seen their effects."""

A_WHILE = 30.0
"""Virtual seconds in which the outcome of a claim is known if nothing goes wrong."""

QUIET, IDLE = 90.0, 300.0
"""Virtual seconds until an idle agent has reached its longest intervals, and during which its requests are counted."""

LONGEST_POLL = 5
"""Poll intervals between two reads of the doorbell by an idle agent."""

JITTER = 0.8 * 0.99
"""The share of its interval after which something may happen at the earliest: the jitter, on a clock that is too
fast."""

REMOVED = 700.0
"""Virtual seconds after its time in which a job is archived, also if an agent's death must be found first."""

IN_ARCHIVE = 150.0
"""Virtual seconds for which finished jobs are kept longer than the quarantine and the patience of submitters require.
So they are archived before they are removed."""

ARCHIVE_SWEEP, LISTS_OF_A_SWEEP = 300.0, 2
"""Virtual seconds between two sweeps of the archive, and the listings of each if no day of the archive is due."""

FOUND_ANYWAY = 110.0
"""Virtual seconds in which a job whose ring was lost is claimed in a quiet cluster: a pass, which lists the index, is a
minute away, and an idle agent looks at its doorbell every 15 s at most."""

SWEPT = 1300.0
"""Virtual seconds in which a family is archived, a generation in each repair, and the archive is swept afterwards."""

AT_EASE = 60.0
"""Virtual seconds after the last fault in which requests and retries from before it have ended."""

PASSES_GO_ON, REPAIRS_GO_ON = 300.0, 450.0
"""Virtual seconds in which a pass, and a repair, ends, even if the agent that ran the last one has just gone down."""

TAKEN_BACK = 400.0
"""Virtual seconds after which a running job that its holder does not list is pending again: two repairs look at it.
If the holder's state is unknown, two of the longest intervals pass before."""

LONGEST_GRACE = 10.0

HEARD = LONGEST_GRACE + A_WHILE
"""Virtual seconds from a request to stop a job until it has ended: the mail is read between two beats."""

HEARD_ANYWAY = LONGEST_GRACE + A_WHILE + 2 * 1.2 * ClusterSettings().repair_interval
"""The same if the mail was lost: the agent reads the job's record at its repairs, at the latest at the second one."""


def left(world: World) -> set[str]:
    """Jobs that have not ended, and drops that wait."""
    return {job.id for job in _unfinished(world)}.union(_drops(world))


def _unfinished(world: World) -> list[JobRecord]:
    """Jobs that have not ended, without those that cannot end while malformed objects are in their way."""
    jobs = world.watching.jobs.values()
    return [job for job in jobs if job.status not in TERMINAL and not world.strangers.excuses(job)]


def explain(world: World) -> None:
    """Raise an error because the bound has passed."""
    for job in _unfinished(world):
        name = "every runnable job ends"
        if job.parent and (parent := world.watching.jobs.get(job.parent.job)) and parent.status in TERMINAL:
            name = "no orphaned child"
        about = [job.id] + ([job.lease.agent] if job.lease else [])
        raise Broken(name, f"{job.id} is {told(job)}, and nothing has ended for {BOUND:g} s", *about)
    raise Broken("every drop is dealt with", f"{_drops(world)} still lie in the inbox", *_drops(world))


def check(world: World) -> None:
    """Check what must hold soon after everything has ended."""
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
    """Check that no ended job has an index entry, even while malformed objects exist."""
    for job, attempts in world.watching.entries.items():
        record = world.watching.jobs.get(job)
        if attempts and record is not None and record.status in TERMINAL and job not in world.strangers.harmed:
            raise Broken("no entry outlives its job", f"{job} has ended, and its entries {attempts} are left", job)


def check_mail(world: World) -> None:
    """Check that jobs end when asked to, even if the mail was lost in the storm."""
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
    """Check that passes and repairs continue despite malformed objects, and that no job runs unlisted by its holder."""
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
    """Check that agents hold nothing for long, except to look at an entry whose record was never written."""
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
    """Check that an idle cluster makes only the requests that docs/operating.md prices."""
    world.loop.advance(world.loop.now + QUIET)
    # While retention removes jobs, the cluster is not idle.
    for _ in range(math.ceil(_retained(world) / IDLE)):
        before, is_quiet, rests = _sent(world), _is_quiet(world), _rests(world)
        world.loop.advance(world.loop.now + IDLE)
        requests, is_quiet, rests = _sent(world) - before, is_quiet and _is_quiet(world), rests and _rests(world)
        if not any(verb == "delete" for verb, _ in requests):
            break
    budget = _budget(sum(host.agent is not None for host in world.hosts), is_quiet)
    if list(world.storage.contents.keys(ReservationKeys.area, None)):
        budget["list", "placements"] += math.ceil(IDLE / (ClusterSettings().repair_interval * JITTER))
    # The repair reads each record once after its last change, and is rare in a quiet cluster.
    since = EPOCH + world.loop.now - IDLE - QUIET_INTERVALS * ClusterSettings().repair_interval / JITTER
    objects = world.storage.contents.objects
    for area in (JobKeys.area, ReservationKeys.area):
        changed = [key for key in world.storage.contents.keys(area, None) if objects[key].updated > since]
        budget["get", area.rstrip("/")] += len(changed)
    for request, sent in requests.items():
        if sent > budget[request]:
            message = f"{sent} times {' '.join(request)} in {IDLE:g} s, and {budget[request]} are stated"
            raise Broken("an idle cluster asks for what is stated", message, *(host.name for host in world.hosts))
    world.idle_counted += 1
    if not rests:
        message = "nothing is left to do, and the pass is run as often as ever"
        raise Broken("an idle cluster asks for what is stated", message, _lease(world).holder)


def check_woken(world: World) -> None:
    """Check that a quiet cluster takes up a job whose ring was lost."""
    if not _is_quiet(world):
        return
    world.note("world", "a job comes while the cluster is quiet")
    arrived: list[str] = []

    async def arrive() -> None:
        core = await world.core(latecomer, HostClock(world.loop))
        spec = parse_spec({"name": "long", "entrypoint": {"command": ["simulated"]}, "resources": {"cpu": 0.5}})
        arrived.append((await submit_one(core, new_record(core, spec, None, None, ""))).job.id)

    latecomer = Participant("latecomer")
    world.spawn(latecomer, arrive())
    since = world.loop.now
    while not arrived or not _is_taken(world.watching.jobs[arrived[0]]):
        if world.loop.now - since > FOUND_ANYWAY:
            raise Broken("a quiet cluster takes up work", f"{arrived} waits for {FOUND_ANYWAY:g} s", *arrived)
        world.loop.advance(world.loop.now + 1.0)


def _is_taken(job: JobRecord) -> bool:
    """Whether it was claimed, or stopped before that: users of some worlds stop all that they find."""
    return job.lease is not None or job.status in TERMINAL


def _lease(world: World) -> ReconcilerRecord:
    found = world.storage.contents.objects[CoordinatorKeys.reconciler]
    return codec.decode(found.data, ReconcilerRecord).record


def _is_quiet(world: World) -> bool:
    return role_lease.is_quiet(_lease(world), ClusterSettings())


def _rests(world: World) -> bool:
    """Whether the pass is run rarely, unless something is left to do, such as a silent agent that is not yet dead."""
    return _is_quiet(world) or _has_something_left(world)


def _has_something_left(world: World) -> bool:
    """Whether there is anything that may keep the cluster from being quiet."""
    lease, areas = _lease(world), (PendingKey.area, PlacementKey.area, ReservationKeys.area, InboxKeys.area)
    lies = any(next(iter(world.storage.contents.keys(area, None)), None) for area in areas)
    return bool(lies or left(world) or lease.problems or lease.suspects or world.strangers.harmed)


def _retained(world: World) -> float:
    """Virtual seconds after the end of all jobs in which they have been archived and removed."""
    unarchived = world.scenario.quarantine + world.scenario.gives_up
    return unarchived + REMOVED + SWEPT + unarchived + IN_ARCHIVE


def wait_out(world: World) -> None:
    """Wait until the entries of submitters that were lost before they wrote the record are gone.

    A group's stay longest.
    """
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
    """Entries of groups and reservations without records, which the pass and the repair read until they give up."""
    keys = world.storage.contents.keys
    entries = ((key, PlacementKey.parse(key)) for key in keys(PlacementKey.area, None))
    owners = {key: ReservationKeys.key(entry.owner) for key, entry in entries if entry and entry.kind == RESERVATION}
    return [key for key, record in owners.items() if record not in world.storage.contents.objects]


def _sent(world: World) -> Counter[tuple[str, str]]:
    return sum((connection.sent for connection in world.connections.values()), Counter())


def _budget(agents: int, is_quiet: bool) -> Counter[tuple[str, str]]:
    """Requests in `IDLE` seconds, by verb and area: of every agent, and of the one that runs the pass."""
    s = ClusterSettings()
    passes = min(s.idle_beat_interval, QUIET_INTERVALS * s.pass_interval) if is_quiet else s.pass_interval
    repairs = s.repair_interval * (QUIET_INTERVALS if is_quiet else 1)
    of_each = {
        ("put", "agents"): s.idle_beat_interval,
        ("get", "agents"): s.idle_beat_interval,  # the pass reads changed records
        ("get", "pools"): LONGEST_POLL * s.poll_interval,
        ("get", "coordinator"): s.pass_interval,
        ("list", "pending"): repairs,
        ("put", "doctor"): BEATS_PER_CHECK * s.idle_beat_interval,
    }
    of_the_pass = dict.fromkeys([("list", "agents"), ("list", "inbox"), ("put", "coordinator")], passes)
    repaired = ("jobs", "pending", "children", "actors", "placements", "reservations")
    of_the_pass |= {("list", area): repairs for area in repaired}
    of_the_pass |= {("list", "names"): POOL_SWEEP_INTERVAL, ("get", "placements"): s.poll_interval}
    of_the_pass |= {("list", "archive"): ARCHIVE_SWEEP / LISTS_OF_A_SWEEP}
    beside_it = {("list", "placements"): s.repair_interval, ("list", "inbox"): REJECTION_SWEEP_INTERVAL}
    if is_quiet:
        beside_it["list", "pending"] = passes
    budget: Counter[tuple[str, str]] = Counter()
    for interval_of, how_many in ((of_each, agents), (of_the_pass, 1), (beside_it, 1)):
        for request, interval in interval_of.items():
            budget[request] += how_many * math.ceil(IDLE / (interval * JITTER))
    return budget


def check_fsck(world: World) -> None:
    """Check that all objects are consistent, except for attempts that are missing in a restored record of their job.

    Problems that live agents report about their hosts, which may be broken, are no problems of the stored objects.
    """
    for problem in world.troubles():
        area, _, rest = problem.key.partition("/")
        of_host = area == "agents" and problem.what.startswith("the agent says: ")
        if any(world.storage.was_written_elsewhere(word) for word in problem.what.split()):
            continue  # it misses what was uploaded just after another cluster had come to the root
        if not of_host and (area != "work" or rest.partition("/")[0] not in world.strangers.harmed):
            raise Broken("fsck finds nothing", str(problem), problem.key)


def check_named(world: World) -> None:
    """Check that `fray fsck` names every malformed object."""
    if unnamed := world.strangers.unnamed(problem.key for problem in world.troubles()):
        raise Broken("every odd object is named", f"{len(unnamed)} are not, such as {unnamed[0]!r}", unnamed[0])


def check_rest(world: World) -> None:
    """Check that retention has removed everything."""
    world.loop.advance(world.loop.now + _retained(world))
    left = [f"agents/{agent.id}" for agent in world.watching.agents.values() if agent.state != "live"]
    for prefix in ("jobs/", "archive/", "children/", "pending/", "work/", "inbox/"):
        left += world.storage.contents.keys(prefix, None)
    harmed = tuple(WorkKeys.prefix(job) for job in world.strangers.harmed)  # without a record, nothing removes its data
    if left := [key for key in left if not key.startswith(harmed)]:
        raise Broken("retention removes what ended", f"{len(left)} objects are left, such as {left[0]}", left[0])


def _drops(world: World) -> list[str]:
    """Drops that can be processed although malformed objects exist, for example at the key of a drop's job."""
    drops = [key for key in world.storage.contents.keys(InboxKeys.area, None) if InboxKeys.is_drop(key)]
    return [key for key in drops if world.strangers.is_readable(key) and not _is_job_odd(world, key)]


def _is_job_odd(world: World, drop: str) -> bool:
    """Whether the drop's job or its parent cannot be read, or the parent waits for such a job."""
    lies, strangers = world.storage.contents.objects[drop], world.strangers
    made = world.watching.made_of.get((drop, lies.version), ())
    parent = world.watching.parents_named.get((drop, lies.version)) or ""
    odd = any(strangers.is_stranger(JobKeys.key(job)) for job in (*made, job_named_by(lies), parent))
    waiting = (world.watching.jobs.get(job) for job in (parent, *made))
    return odd or any(job is not None and strangers.excuses(job) for job in waiting)
