"""Invariants of gangs, checked on every write of their records and their agents', and at every start of a task."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from fray_coordinator.protocol.scheduling import shape_of
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_layouts.records import AgentRecord, ClusterSettings, JobRecord, Placement, ReplicaExit
from fray_layouts.spec import is_gang
from fray_layouts.states import AgentState, ExitKind, HoldingPhase
from fray_layouts.work_keys import WorkKeys
from tests.simulation.effects import Run
from tests.simulation.gangwork import CHIPS
from tests.simulation.invariants import Broken, told, told_agent
from tests.simulation.network import CLIENT_TIMEOUT

if TYPE_CHECKING:
    from tests.simulation.gang_watching import GangWatch
    from tests.simulation.watching import Change, Watching

MOST_MOVES = 3
"""Changes of a gang's members for better ones in one attempt."""

_BY_ITS_HOST = frozenset({"eof", "deadline", ExitKind.PREEMPTED, ExitKind.LOST})
"""How replicas end whose host, or its agent, was lost: that explains the failures of the others."""


# --- of a gang's record


def members_change_by_rounds(w: GangWatch, c: Change) -> None:
    before, after = _placements(c)
    changed = before.members != after.members and _agents(before) != _agents(after)
    if after.round not in (before.round, before.round + 1) or (changed and after.round == before.round):
        raise Broken("members change by rounds", f"{c.name}: {told(c.before)} became {told(c.after)}", c.name)


def moves_are_few(w: GangWatch, c: Change) -> None:
    if _placements(c)[1].moves > MOST_MOVES:
        raise Broken("moves for a better set are few", f"{c.name}: {told(c.after)}", c.name)


def the_window_of_backfill_is_fixed(w: GangWatch, c: Change) -> None:
    """An attempt's window never changes, whatever runs on the members by now."""
    job, until = c.after, _placements(c)[1].until
    if job is None or job.status != Status.GATHERING or until is None:
        return
    first = w.windows.setdefault((c.name, job.attempt), until)
    if until > first:
        message = f"{c.name}: later singles may use the room until {until:.0f}, and it was {first:.0f}"
        raise Broken("the window of backfill is fixed", message, c.name)


def a_stopped_gang_has_ended(w: GangWatch, c: Change) -> None:
    """The check counts the tasks that run, whatever exits are stored.

    If an agent of the gang is dead, the write for it does not wait for the others, which have been told to end too.
    """
    before, after = c.before, c.after
    if before is None or after is None or (before.status, after.status) != (Status.RUNNING, Status.STOPPED):
        return
    known = [w.watching.agents.get(member.agent) for member in _placements(c)[0].members]
    if any(agent is not None and agent.state == AgentState.DEAD for agent in known):
        return
    running = [run for run in w.world.effects.running.get(c.name, ()) if run.attempt == before.attempt]
    if running:
        message = f"{c.name} is stopped, and {[run.told_as for run in running]} run"
        raise Broken("a stopped gang has ended", message, c.name)


def a_gang_starts_with_every_vote(w: GangWatch, c: Change) -> None:
    job = c.after
    if job is None or c.before is None or (c.before.status, job.status) != (Status.GATHERING, Status.RUNNING):
        return
    name = "a gang starts with every vote"
    placement = _placements(c)[1]
    bundles = sorted(number for member in placement.members for number in member.bundles)
    if bundles != list(range(job.spec.replicas)):
        raise Broken(name, f"{c.name} starts with the bundles {bundles} of {job.spec.replicas}", c.name)
    for member in placement.members:
        vote = (c.name, job.attempt, placement.round, member.agent, tuple(member.bundles))
        if vote not in w.votes and member.agent not in w.world.strangers.harmed:
            lists = told_agent(w.watching.agents.get(member.agent))
            raise Broken(name, f"{c.name}: {told(job)}, and {member.agent} is {lists}", c.name, member.agent)


def nobody_starts_while_a_family_goes_first(w: GangWatch, c: Change) -> None:
    job = c.after
    if job is None or c.before is None or (c.before.status, job.status) != (Status.GATHERING, Status.RUNNING):
        return
    if any(each.again is None for each in _placements(c)[0].first):
        message = f"{c.name} starts, and a family goes before it: {told(c.before)}"
        raise Broken("nobody starts while a family goes first", message, c.name)


def slices_are_given_whole(w: GangWatch, c: Change) -> None:
    job = c.after
    if job is None or c.before is None or (c.before.status, job.status) != (Status.GATHERING, Status.RUNNING):
        return
    places = [w.world.slice_of(member.agent) for member in _placements(c)[1].members]
    if not job.spec.slices:
        return
    found = Counter(place.id for place in places if place is not None)
    whole = all(place is not None and found[place.id] == place.hosts for place in places)
    if not whole or len(found) != job.spec.slices or len(set(map(repr, places))) != job.spec.replicas:
        raise Broken("slices are given whole", f"{c.name}: {told(job)} has {dict(found)}", c.name)


def only_who_knows_the_rules_is_chosen(w: GangWatch, c: Change) -> None:
    for member in _placements(c)[1].members:
        if member.agent in w.older or (c.after is not None and c.after.lease is not None):
            message = f"{c.name}: {told(c.after)}, and {member.agent} knows nothing of gangs"
            raise Broken("only who knows the rules is chosen", message, c.name, member.agent)


def nobody_has_more_than_its_host(w: GangWatch, c: Change) -> None:
    """The sum is over all running gangs, by their records. A replica whose exit is stored uses nothing."""
    if c.after is None or c.after.status != Status.RUNNING or (c.before and c.before.status == Status.RUNNING):
        return
    for member in _placements(c)[1].members:
        taken: Counter[str] = Counter()
        for job in w.watching.jobs.values():
            if job.status == Status.RUNNING and job.placement is not None:
                ended = w.exits.get((job.id, job.attempt), {})
                mine = [n for m in job.placement.members if m.agent == member.agent for n in m.bundles]
                take(taken, job, len(set(mine).difference(ended)))
        w.check_room(member.agent, taken, c.name)


def one_result_and_it_is_that_of_all(w: GangWatch, c: Change) -> None:
    job = c.after
    if job is None or job.status != Status.SUCCEEDED or (c.before is not None and c.before.status == job.status):
        return
    name = "a gang succeeds when all replicas have"
    agents = {number: member.agent for member in _placements(c)[1].members for number in member.bundles}
    for replica in range(job.spec.replicas):
        run = w.world.effects.of(job.id, job.attempt, replica)
        if run is None or run.how != "success" or run.agent != agents.get(replica):
            raise Broken(name, f"{job.id}: replica {replica} of attempt {job.attempt} was {run}", job.id)
    value = job.result.value if job.result is not None else None
    if job.result is not None and job.result.key:
        found = w.world.storage.contents.objects.get(job.result.key)
        value = msgspec.json.decode(found.data) if found else None
    if value is None or (value["attempt"], value["replica"]) != (job.attempt, 0):
        raise Broken("one result, and it is replica 0's", f"{job.id}~{job.attempt}: the result is {value}", job.id)


def a_complete_gang_is_never_thrown_away(w: GangWatch, c: Change) -> None:
    """If the exits of all replicas are stored and are successes, the attempt succeeds, whoever looks after that."""
    before, after = c.before, c.after
    if before is None or after is None or before.status != Status.RUNNING or after.status == Status.SUCCEEDED:
        return
    complete = w.complete.get((c.name, before.attempt))
    if (after.status, after.attempt) == (before.status, before.attempt) or complete is None:
        return
    storage = w.world.storage
    looked = storage.listed.get((c.sender, WorkKeys.exits(c.name, before.attempt)), -1.0)
    for replica in range(before.spec.replicas):
        missed = storage.found_absent.get((c.sender, WorkKeys.exit(c.name, before.attempt, replica)), -1.0)
        looked = max(looked, missed - CLIENT_TIMEOUT)
    if looked < 0 or looked >= complete:
        message = f"{c.name}: all had succeeded at {complete:.1f}, and {c.sender} made it {told(after)}"
        raise Broken("a complete gang is never thrown away", message, c.name)


def a_gangs_failure_is_a_replicas_own(w: GangWatch, c: Change) -> None:
    """A replica's failure is the gang's, unless another replica was lost with its host and may be the cause."""
    before, after = c.before, c.after
    if before is None or after is None or before.status != Status.RUNNING:
        return
    if (after.status, after.attempt) == (before.status, before.attempt):
        return
    runs = [w.world.effects.of(c.name, before.attempt, number) for number in range(before.spec.replicas)]
    failed = [run for run in runs if run is not None and run.failed]
    a_killer = before.agent_deaths + 1 >= ClusterSettings().host_killer_limit
    if after.failures > before.failures and not failed and not a_killer:
        message = f"{c.name}: attempt {before.attempt} ended by {[run and run.how for run in runs]}"
        raise Broken("a gang's failure is a replica's own", f"{message}, and counts as its failure", c.name)
    lost = after.history[-1].exit.kind == ExitKind.LOST if after.history else False
    explained = lost or any(run is None or run.how in _BY_ITS_HOST for run in runs)
    for run in failed:
        mine = w.world.acts_for(c.sender, run.agent) and run.told and not w.world.mishaps.since(run.begin, run.host)
        if mine and before.stop is None and after.failures == before.failures and not explained:
            ends = [end.exit for end in after.history[-1:]]
            message = f"{c.name}: {run} failed by itself, and its agent made it {told(after)}: {ends}"
            raise Broken("a replica's failure is the gang's", message, c.name, run.agent)


# --- of an agent's record


def a_vote_binds(w: GangWatch, c: Change) -> None:
    """A vote that a beat has listed stays listed until the owner's record has moved on."""
    before, after = c.before, c.after
    if not isinstance(before, AgentRecord) or after is None or after.state != "live" or before.state != "live":
        return
    for job, vote in before.holdings.items():
        now = after.holdings.get(job)
        kept = now is not None and (now.round, now.bundles) == (vote.round, vote.bundles)
        if vote.phase != HoldingPhase.RESERVED or kept:
            continue
        record = w.watching.jobs.get(job)
        if record is None or record.placement is None or job in w.world.strangers.harmed:
            continue
        ended = all(number in w.exits.get((job, vote.attempt), {}) for number in vote.bundles)
        stands = record.status in (Status.GATHERING, Status.RUNNING) and record.attempt == vote.attempt and not ended
        if stands and record.placement.round == vote.round and _has(record.placement, c.name):
            message = f"{c.name} lists {told_agent(after)}, and {job} is {told(record)}"
            raise Broken("a vote binds", message, c.name, job)


def an_exit_comes_before_anything_else(w: GangWatch, c: Change) -> None:
    """An agent that has run a replica stores its exit before it drops the job, wherever the root's writes then go."""
    before, after = c.before, c.after
    if not isinstance(before, AgentRecord) or after is None or after.state == "dead":
        return
    for job, held in before.holdings.items():
        record = w.watching.jobs.get(job)
        if record is None or not is_gang(record.spec) or job in after.holdings or job in w.world.strangers.harmed:
            continue
        if record.attempt != held.attempt or record.status in TERMINAL:
            continue
        for replica in range(record.spec.replicas):
            run = w.world.effects.of(job, held.attempt, replica)
            key = WorkKeys.exit(job, held.attempt, replica)
            left = replica in w.exits.get((job, held.attempt), {}) or w.world.storage.was_written_elsewhere(key)
            if run is not None and run.agent == c.name and not left:
                message = f"{c.name} drops {job}, and nothing tells how replica {replica} ended: {run}"
                raise Broken("an exit comes before anything else", message, c.name, job)


# --- at the start of a task


def a_replica_starts_with_its_gang(w: GangWatch, run: Run) -> None:
    placement = w.started.get((run.job, run.attempt))
    mine = [] if placement is None else [n for m in placement.members if m.agent == run.agent for n in m.bundles]
    if run.replica not in mine:
        record = told(w.watching.jobs.get(run.job))
        message = f"replica {run.replica} of {run.job}~{run.attempt} starts under {run.agent}, and it is {record}"
        raise Broken("a replica starts with its gang", message, run.job, run.agent)


def attempts_never_overlap(w: Watching, run: Run, others: list[Run]) -> None:
    """After the grace and two repair intervals, an attempt may start beside tasks that cannot be killed."""
    job = w.jobs.get(run.job)
    for other in others:
        waited = w.world.loop.now - max(w.attempt_since.get((run.job, n), 0.0) for n in (run.attempt, other.attempt))
        waits = (job.spec.grace if job else 0.0) + 2 * 0.8 * ClusterSettings().repair_interval
        if waited < waits or run.attempt < other.attempt:
            message = f"{run.job}: {run.attempt} starts on {run.host} while {other.attempt} runs on {other.host}"
            raise Broken("attempts of a gang never overlap", message, run.job, run.agent, other.agent)


def no_agent_runs_more_than_it_has(w: GangWatch, run: Run) -> None:
    """The check counts the tasks that run, whatever the records say."""
    taken: Counter[str] = Counter()
    for task in w.world.process_host(run.agent).running:
        job = w.watching.jobs.get(task.run.job)
        if task.run.agent == run.agent and job is not None:
            take(taken, job, 1)
    w.check_room(run.agent, taken, run.job)


def a_job_finds_its_chips_free(w: GangWatch, run: Run) -> None:
    """Its agent has found them free since the last job with these chips ended."""
    if not _has_chips(w, run):
        return
    here = [other for other in w.world.effects.runs.values() if other.host == run.host and _has_chips(w, other)]
    since = max((other.end for other in here if other.end is not None), default=0.0)
    found_free_at = w.world.chips_found_free_at(run.agent)
    if found_free_at is None or found_free_at < since:
        message = f"{run.told_as} starts on {run.host}, whose chips were last found free at {found_free_at}"
        raise Broken("a job finds its chips free", message, run.job, run.agent)


def _has_chips(w: GangWatch, run: Run) -> bool:
    job = w.watching.jobs.get(run.job)
    return job is not None and shape_of(job.spec).device != ""


def take(taken: Counter[str], job: JobRecord, bundles: int) -> None:
    """Add the host's resources that this many replicas of a job use."""
    shape = shape_of(job.spec)
    taken["cpu"] += bundles * shape.cpu
    taken["chips"] += bundles * (CHIPS if shape.device.startswith("tpu") else 0)


def _placements(c: Change) -> tuple[Placement, Placement]:
    before = c.before.placement if c.before is not None else None
    after = c.after.placement if c.after is not None else None
    return before or Placement(), after or before or Placement()


def _agents(placement: Placement) -> list[tuple[str, list[int]]]:
    return [(member.agent, member.bundles) for member in placement.members]


def _has(placement: Placement, agent: str) -> bool:
    return any(member.agent == agent for member in placement.members)


def is_good(end: ReplicaExit) -> bool:
    """Whether the replica succeeded."""
    return end.exit.kind == ExitKind.SUCCESS


OF_GANG_RECORDS = [
    members_change_by_rounds,
    moves_are_few,
    the_window_of_backfill_is_fixed,
    a_gang_starts_with_every_vote,
    nobody_starts_while_a_family_goes_first,
    slices_are_given_whole,
    only_who_knows_the_rules_is_chosen,
    nobody_has_more_than_its_host,
    one_result_and_it_is_that_of_all,
    a_complete_gang_is_never_thrown_away,
    a_gangs_failure_is_a_replicas_own,
    a_stopped_gang_has_ended,
]
OF_MEMBERS = [a_vote_binds, an_exit_comes_before_anything_else]
