"""Invariants of jobs, checked on every write of a job's record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fray_coordinator.protocol.transitions import TERMINAL, TRANSITIONS, Status
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys
from fray_layouts.records import ClusterSettings, JobRecord, KeptOutputs
from fray_layouts.states import ExitKind
from fray_layouts.work_keys import WorkKeys
from tests.simulation.invariants import (
    Broken,
    a_deleted_name_is_never_born_again,
    every_body_succeeds_the_one_before,
    reachable,
    told,
    unknown_fields_survive,
)
from tests.simulation.work import is_hopeless

if TYPE_CHECKING:
    from tests.simulation.watching import Change, Watching

_ALLOWED = {(str(before), str(after)) for (before, _), after in TRANSITIONS.items()}


def nothing_leaves_a_terminal_state(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None or c.before.status not in TERMINAL:
        return
    kept = ("status", "attempt", "exit", "result", "outputs", "ended_at")
    if any(getattr(c.before, name) != getattr(c.after, name) for name in kept):
        raise Broken("nothing leaves a terminal state", f"{c.name}: {told(c.before)} became {told(c.after)}", c.name)


def only_transitions_of_the_table(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None or c.before.status == c.after.status:
        return
    if (c.before.status, c.after.status) not in _ALLOWED:
        raise Broken("only transitions of the table", f"{c.name}: {told(c.before)} became {told(c.after)}", c.name)


def attempts_only_grow(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None:
        return
    requeued = c.before.status == Status.RUNNING and c.after.status in (Status.PENDING, Status.GATHERING)
    if c.after.attempt != c.before.attempt + (requeued or _restarted(c.before, c.after)):
        raise Broken("attempts only grow", f"{c.name}: {told(c.before)} became {told(c.after)}", c.name)


def _restarted(before: JobRecord, after: JobRecord) -> bool:
    """The next attempt of a failed actor, with the same holder."""
    if before.status != after.status or after.attempt == before.attempt or before.lease is None or after.lease is None:
        return False
    return before.spec.actor and before.stop is None and before.lease.agent == after.lease.agent


def one_result_and_it_is_the_attempts_own(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.status != Status.SUCCEEDED or (c.before is not None and c.before.status == job.status):
        return
    if job.driver:  # a driver's job has no task
        return
    name = "one result, and it is the attempt's own"
    run = w.world.effects.of(job.id, job.attempt)
    if w.results.setdefault(job.id, job.attempt) != job.attempt:
        raise Broken(name, f"{job.id}: attempts {w.results[job.id]} and {job.attempt} both committed", job.id)
    if run is None or run.how != "success" or job.lease is None or run.agent != job.lease.agent:
        raise Broken(name, f"{job.id}: {told(job)} is committed, but what ran was {run}", job.id)
    value = _result_of(w, job)
    if value is None or (value["attempt"], value["agent"]) != (job.attempt, job.lease.agent):
        raise Broken(name, f"{job.id}: attempt {job.attempt} committed the result of {value}", job.id)
    if bool(job.spec.outputs) != (job.outputs is not None):
        raise Broken(name, f"{job.id}: {job.spec.outputs} are asked for, committed is {job.outputs}", job.id)
    if job.outputs is not None and (said := _output_of(w, job.outputs)) != {"job": job.id, "attempt": job.attempt}:
        raise Broken(name, f"{job.id}: attempt {job.attempt} committed the outputs of {said}", job.id)


def outputs_come_before_the_commit(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.exit is None or (c.before is not None and c.before.exit is not None):
        return
    objects = w.world.storage.contents.objects
    wanted = [WorkKeys.log(job.id, job.attempt, 0, n + 1) for n in range(job.exit.log_chunks or 0)]
    wanted += [job.result.key] if job.result and job.result.key else []
    if job.outputs is not None:
        numbers = range(1, job.outputs.parts + 1)
        wanted += [job.outputs.key, *(WorkKeys.output_part(job.outputs.key, number) for number in numbers)]
    for key in wanted:
        if key not in objects:
            raise Broken("outputs come before the commit", f"{job.id} is committed without {key}", job.id)


def a_complete_result_is_never_thrown_away(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or before.status != Status.RUNNING or after is None or after.status == Status.SUCCEEDED:
        return
    if (after.status, after.attempt) == (before.status, before.attempt):
        return
    if not w.world.acts_for(c.sender, before.lease.agent):
        return
    run = w.world.effects.of(c.name, before.attempt)
    if run is not None and w.world.mishaps.since(run.begin, run.host):
        return  # an attempt may end like this, with a reason
    agent = w.world.agents.get(before.lease.agent)
    asked_to_stop = before.stop is not None or (agent is not None and agent.member.leaving)
    if asked_to_stop and run is not None and w.world.storage.takes_nothing("work/", c.sender, run.begin):
        return  # a stop may have to wait for the end of an outage, but not for a single object
    heeds_a_stop = before.stop is not None and run is not None and not run.complete_before_stop
    if run is not None and run.how == "success" and run.told and not heeds_a_stop:
        message = f"{c.name}: attempt {before.attempt} was complete, and its own agent made it {told(after)}"
        raise Broken("a complete result is never thrown away", message, c.name)


def preemption_never_spends_the_failure_budget(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or after is None or before.status != Status.RUNNING:
        return
    if (after.status, after.attempt) == (before.status, before.attempt):
        return
    run = w.world.effects.of(c.name, before.attempt)
    own_failure = run is not None and run.failed
    holders_word = w.world.acts_for(c.sender, before.lease.agent)
    a_killer = not holders_word and before.agent_deaths + 1 >= ClusterSettings().host_killer_limit
    hopeless = is_hopeless(w.world.seed, after.spec.name, after.id)
    if after.failures > before.failures and not own_failure and not a_killer and not hopeless:
        message = f"{c.name}: attempt {before.attempt} ended by {run}, and counts as the job's failure"
        raise Broken("preemption never spends the failure budget", message, c.name)
    mishap = run is not None and w.world.mishaps.since(run.begin, run.host)
    if (
        run is not None
        and own_failure
        and run.told
        and not mishap
        and holders_word
        and before.stop is None
        and after.failures != before.failures + 1
    ):
        message = f"{c.name}: attempt {before.attempt} failed by itself, and its failures stay {after.failures}"
        raise Broken("failure spends the failure budget", message, c.name)


def each_attempt_spends_one_budget(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or after is None or after.attempt == before.attempt:
        return
    spent = after.failures + after.preemptions - before.failures - before.preemptions
    yielded = bool(after.history) and after.history[-1].exit.kind == ExitKind.YIELDED
    if spent + (after.start_failures > before.start_failures) != (0 if yielded else 1):
        raise Broken("each attempt spends one budget", f"{c.name}: {told(before)} became {told(after)}", c.name)


def a_hopeless_environment_fails_the_job_for_good(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or after is None or not is_hopeless(w.world.seed, after.spec.name, after.id):
        return
    holders_word = before.lease is not None and w.world.acts_for(c.sender, before.lease.agent)
    if holders_word and after.failures > before.failures and after.status != Status.FAILED:
        message = f"{c.name}: nobody can make its environment, and it became {told(after)}"
        raise Broken("a hopeless environment fails the job for good", message, c.name)


def a_job_that_kills_its_hosts_fails(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or after is None or before.status != Status.RUNNING or after.attempt == before.attempt:
        return
    lost = bool(after.history) and after.history[-1].exit.kind == "lost" and after.failures == before.failures
    w.deaths[c.name] = w.deaths.get(c.name, 0) + 1 if lost else 0
    if w.deaths[c.name] >= ClusterSettings().host_killer_limit:
        message = f"{c.name}: {w.deaths[c.name]} agents in a row died under it, and its failures stay {after.failures}"
        raise Broken("a job that kills its hosts fails", message, c.name)


def a_stopped_job_starts_no_more(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None or c.before.stop is None:
        return
    started = c.before.status in (Status.PENDING, Status.GATHERING) and c.after.status == Status.RUNNING
    if c.after.stop is None or c.after.attempt > c.before.attempt or started:
        raise Broken("a stopped job starts no more", f"{c.name}: {told(c.before)} became {told(c.after)}", c.name)


def a_claim_is_listed_by_its_holder(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.status != Status.RUNNING or (c.before is not None and c.before.status == Status.RUNNING):
        return
    name = "a claim is listed by its holder"
    holder = AgentKeys.key(job.lease.agent)
    if holder not in w.world.storage.contents.objects and holder not in w.world.strangers.overwritten:
        raise Broken(name, f"{job.id} was claimed by {job.lease.agent}, which has no record", job.id)
    reachable(w, job.id, "it was claimed")


def a_holder_promises_to_beat_often(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.status != Status.RUNNING or (c.before is not None and c.before.status == Status.RUNNING):
        return
    if CoordinatorKeys.reconciler in w.world.strangers.overwritten:
        return  # it may have told of so large a fleet that every agent beats rarely
    holder = w.agents.get(job.lease.agent)
    if holder is not None and holder.state == "live" and holder.interval >= ClusterSettings().idle_beat_interval:
        message = f"{job.id} was claimed by {holder.id}, whose record promises a beat every {holder.interval:.0f} s"
        raise Broken("a holder promises to beat often", message, job.id, holder.id)


def a_child_is_indexed_before_it_exists(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.parent is None or job.parent.detached or job.status in TERMINAL:
        return
    if c.before is not None and c.before.parent == job.parent:
        return
    key = ChildKey(job.parent.job, job.parent.attempt, job.id).key()
    if key not in w.world.storage.contents.objects:
        raise Broken("a child is indexed before it exists", f"{job.id} exists without {key}", job.id, job.parent.job)


def a_record_outlives_what_belongs_to_it(w: Watching, c: Change) -> None:
    if c.after is not None or c.before is None:
        return
    name = "a record outlives what belongs to it"
    if c.before.status not in TERMINAL:
        raise Broken(name, f"{c.name} was deleted while {told(c.before)}", c.name)
    if not c.before.expiring:
        raise Broken(name, f"{c.name} was deleted, is not archived, and was not marked before", c.name)
    if c.name not in w.archived and (child := _child_under_jobs(w, c.name)):
        raise Broken(name, f"{c.name} was deleted before its child {child}", c.name, child)


def a_parent_moves_after_its_children(w: Watching, job: str) -> None:
    if child := _child_under_jobs(w, job):
        message = f"{job} was archived before its child {child}"
        raise Broken("a parent is archived after its children", message, job, child)


def _child_under_jobs(w: Watching, job: str) -> str:
    for child in w.jobs.values():
        if child.parent and child.parent.job == job and not child.parent.detached and child.id not in w.archived:
            return child.id
    return ""


def what_is_archived_has_ended_so(w: Watching, job: str, copy: JobRecord | None) -> None:
    """The copy in the archive is the last record of the job, whatever was lost, late or sent twice.

    Only retention changes it, to mark it.
    """
    last = w.jobs.get(job)
    if copy is not None and last is not None:
        last = replace(last, expiring=copy.expiring, op=copy.op, recent_ops=copy.recent_ops, created_op=copy.created_op)
    if copy is None or last is None or last.status not in TERMINAL or copy != last:
        message = f"{told(copy)} was archived for {job}, which is {told(last)}"
        raise Broken("what is archived is the job's last record", message, job)


def a_drop_becomes_one_job(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.inbox is None or c.before is None or c.before.status != Status.UNADMITTED:
        return
    if job.status not in (Status.PENDING, Status.GATHERING):
        return
    drop = (job.inbox.key, job.inbox.version, job.submitted_at)
    first = w.admitted.setdefault(drop, job.id)
    if first != job.id:
        raise Broken("a drop becomes one job", f"{first} and {job.id} were both made of {drop}", first, job.id)


def an_overwritten_drop_does_not_run(w: Watching, c: Change) -> None:
    """A version is admitted only if the inbox held it after its record was there."""
    job = c.after
    if job is None or job.inbox is None or c.before is None or c.before.status != Status.UNADMITTED:
        return
    lies = w.world.storage.contents.objects.get(job.inbox.key)
    if job.status not in (Status.PENDING, Status.GATHERING) or (lies is not None and lies.version == job.inbox.version):
        return
    if w.drop_left.get((job.inbox.key, job.inbox.version), 0.0) < w.born[job.id]:
        message = f"{job.id} is admitted, but {job.inbox} had left the inbox before the job's record was there"
        raise Broken("an overwritten drop does not run", message, job.id, job.inbox.key)


def a_changed_job_is_reachable(w: Watching, c: Change) -> None:
    reachable(w, c.name, "its record was changed")


def _output_of(w: Watching, outputs: KeptOutputs) -> object:
    found = w.world.storage.contents.objects.get(WorkKeys.output_part(outputs.key, 1))
    return msgspec.json.decode(found.data) if found else None


def _result_of(w: Watching, job: JobRecord) -> dict[str, object] | None:
    if job.result is None:
        return None
    if job.result.key:
        found = w.world.storage.contents.objects.get(job.result.key)
        return msgspec.json.decode(found.data) if found else None
    value: dict[str, object] = job.result.value
    return value


OF_JOBS = [
    a_deleted_name_is_never_born_again,
    nothing_leaves_a_terminal_state,
    only_transitions_of_the_table,
    attempts_only_grow,
    each_attempt_spends_one_budget,
    a_hopeless_environment_fails_the_job_for_good,
    a_job_that_kills_its_hosts_fails,
    a_stopped_job_starts_no_more,
    one_result_and_it_is_the_attempts_own,
    outputs_come_before_the_commit,
    a_complete_result_is_never_thrown_away,
    preemption_never_spends_the_failure_budget,
    a_claim_is_listed_by_its_holder,
    a_holder_promises_to_beat_often,
    a_child_is_indexed_before_it_exists,
    a_record_outlives_what_belongs_to_it,
    a_drop_becomes_one_job,
    an_overwritten_drop_does_not_run,
    unknown_fields_survive,
    a_changed_job_is_reachable,
    every_body_succeeds_the_one_before,
]
OF_SINGLES = [
    one_result_and_it_is_the_attempts_own,
    a_complete_result_is_never_thrown_away,
    preemption_never_spends_the_failure_budget,
    a_claim_is_listed_by_its_holder,
    a_holder_promises_to_beat_often,
]
"""Invariants of jobs with a lease; gangs have no lease and have their own (`gang_invariants`)."""

OF_GANGS = [check for check in OF_JOBS if check not in OF_SINGLES]
