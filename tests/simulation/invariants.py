"""What must always be true, one function each; a name and a message say what is broken.

`OF_JOBS` and `OF_AGENTS` are checked on every write of such a record; the others where their name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, TRUST_INTERVALS
from fray_coordinator.protocol.transitions import TABLE, TERMINAL, Status
from fray_coordinator.store.api import Object
from fray_layouts.names import Agents, Child, Inbox, JobId, Jobs, Work
from fray_layouts.records import AgentRecord, JobRecord, Settings
from tests.simulation.effects import Run
from tests.simulation.loop import Participant

if TYPE_CHECKING:
    from tests.simulation.watching import Change, Watching

DRIFT = 0.97
"""Clocks that are 1 % fast or slow shorten a time-out by so much at most, seen from outside."""

_LONGEST_DEADLINE = (2 * Settings().beat_interval + 1.5) / DRIFT
"""Seconds for which a task may outlive its frozen agent's trust at most."""

_ALLOWED = {(str(before), str(after)) for (before, _), after in TABLE.items()}
_PREEMPTIONS = ("preempted", "stopped", "lost")


class Broken(AssertionError):
    """An invariant does not hold. `invariant`: its name; `about`: the ids and keys that its history is about."""

    def __init__(self, invariant: str, message: str, *about: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.about = list(about)


# --- jobs


def nothing_leaves_a_terminal_state(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None or c.before.status not in TERMINAL:
        return
    kept = ("status", "attempt", "exit", "result", "ended_at")
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
    requeued = c.before.status == Status.RUNNING and c.after.status == Status.PENDING
    if c.after.attempt != c.before.attempt + (requeued or _restarted(c.before, c.after)):
        raise Broken("attempts only grow", f"{c.name}: {told(c.before)} became {told(c.after)}", c.name)


def _restarted(before: JobRecord, after: JobRecord) -> bool:
    """A failed actor's next attempt in the same hands."""
    if before.status != after.status or after.attempt == before.attempt or before.lease is None or after.lease is None:
        return False
    return before.spec.actor and before.stop is None and before.lease.agent == after.lease.agent


def one_result_and_it_is_the_attempts_own(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.status != Status.SUCCEEDED or (c.before is not None and c.before.status == job.status):
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


def outputs_come_before_the_commit(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.exit is None or (c.before is not None and c.before.exit is not None):
        return
    objects = w.world.storage.contents.objects
    wanted = [Work.log(job.id, job.attempt, 0, n + 1) for n in range(job.exit.log_chunks or 0)]
    wanted += [job.result.key] if job.result and job.result.key else []
    for key in wanted:
        if key not in objects:
            raise Broken("outputs come before the commit", f"{job.id} is committed without {key}", job.id)


def a_complete_result_is_never_thrown_away(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or before.status != Status.RUNNING or after is None or after.status == Status.SUCCEEDED:
        return
    if (after.status, after.attempt) == (before.status, before.attempt) or not w.world.is_process_of(
        c.sender, before.lease.agent
    ):
        return
    run = w.world.effects.of(c.name, before.attempt)
    if run is not None and run.complete_before_stop and run.told:
        message = f"{c.name}: attempt {before.attempt} was complete, and its own agent made it {told(after)}"
        raise Broken("a complete result is never thrown away", message, c.name)


def preemption_never_spends_the_failure_budget(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or after is None or before.status != Status.RUNNING:
        return
    if (after.status, after.attempt) == (before.status, before.attempt):
        return
    run = w.world.effects.of(c.name, before.attempt)
    own_failure = run is not None and run.how == "failure"
    if after.failures > before.failures and not own_failure and before.agent_deaths < 2:
        message = f"{c.name}: attempt {before.attempt} ended by {run}, and counts as the job's failure"
        raise Broken("preemption never spends the failure budget", message, c.name)
    holders_word = w.world.is_process_of(c.sender, before.lease.agent)
    if own_failure and run.told and holders_word and before.stop is None and after.failures != before.failures + 1:  # type: ignore[union-attr]
        message = f"{c.name}: attempt {before.attempt} failed by itself, and its failures stay {after.failures}"
        raise Broken("failure spends the failure budget", message, c.name)


def a_job_that_kills_its_hosts_fails(w: Watching, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or after is None or before.status != Status.RUNNING or after.attempt == before.attempt:
        return
    lost = bool(after.history) and after.history[-1].exit.kind == "lost" and after.failures == before.failures
    w.deaths[c.name] = w.deaths.get(c.name, 0) + 1 if lost else 0
    if w.deaths[c.name] >= Settings().host_killer_limit:
        message = f"{c.name}: {w.deaths[c.name]} agents in a row died under it, and its failures stay {after.failures}"
        raise Broken("a job that kills its hosts fails", message, c.name)


def a_stopped_job_starts_no_more(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None or c.before.stop is None:
        return
    started = c.before.status == Status.PENDING and c.after.status == Status.RUNNING
    if c.after.stop is None or c.after.attempt > c.before.attempt or started:
        raise Broken("a stopped job starts no more", f"{c.name}: {told(c.before)} became {told(c.after)}", c.name)


def a_claim_is_listed_by_its_holder(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.status != Status.RUNNING or (c.before is not None and c.before.status == Status.RUNNING):
        return
    name = "a claim is listed by its holder"
    if Agents.key(job.lease.agent) not in w.world.storage.contents.objects:
        raise Broken(name, f"{job.id} was claimed by {job.lease.agent}, which has no record", job.id)
    reachable(w, job.id, "it was claimed")


def a_child_is_indexed_before_it_exists(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.parent is None or job.parent.detached or job.status in TERMINAL:
        return
    if c.before is not None and c.before.parent == job.parent:
        return
    key = Child(job.parent.job, job.parent.attempt, job.id).key()
    if key not in w.world.storage.contents.objects:
        raise Broken("a child is indexed before it exists", f"{job.id} exists without {key}", job.id, job.parent.job)


def a_deleted_name_is_never_born_again(w: Watching, c: Change) -> None:
    """A name in `jobs/` may live again only by a new submission under an id of the submitter's own."""
    key = Jobs.key(c.name) if isinstance(c.after, JobRecord) else Agents.key(c.name)
    gone = w.gone.get(key)
    if c.before is not None or c.after is None or gone is None:
        return
    if isinstance(c.after, JobRecord) and c.after.spec.id and c.after.submitted_at - w.world.epoch > gone:
        w.results.pop(c.name, None)
        return
    message = f"{key} was deleted at {gone:.1f} and is back: {msgspec.json.encode(c.after)[:200]!r}"
    raise Broken("a deleted name is never born again", message, c.name)


def a_record_outlives_what_belongs_to_it(w: Watching, c: Change) -> None:
    if c.after is not None or c.before is None:
        return
    name = "a record outlives what belongs to it"
    if c.before.status not in TERMINAL:
        raise Broken(name, f"{c.name} was deleted while {told(c.before)}", c.name)
    for child in w.jobs.values():
        if child.parent and child.parent.job == c.name and not child.parent.detached:
            raise Broken(name, f"{c.name} was deleted before its child {child.id}", c.name, child.id)


def a_drop_becomes_one_job(w: Watching, c: Change) -> None:
    job = c.after
    if job is None or job.inbox is None or c.before is None or c.before.status != Status.UNADMITTED:
        return
    if job.status != Status.PENDING:
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
    if job.status != Status.PENDING or (lies is not None and lies.version == job.inbox.version):
        return
    if w.drop_left.get((job.inbox.key, job.inbox.version), 0.0) < w.born[job.id]:
        message = f"{job.id} is admitted, but {job.inbox} had left the inbox before the job's record was there"
        raise Broken("an overwritten drop does not run", message, job.id, job.inbox.key)


def unknown_fields_survive(w: Watching, c: Change) -> None:
    ours = c.raw_before.get("since_v2")
    if ours is not None and c.after is not None and c.raw_after.get("since_v2") != ours:
        message = f"{c.name}: {c.sender} wrote {c.raw_after.get('since_v2')} over {ours}"
        raise Broken("unknown fields survive", message, c.name)


def every_body_succeeds_the_one_before(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None:
        return
    if c.after.recent_ops[:1] != [c.before.op] or c.after.created_op != c.before.created_op:
        message = f"{c.name}: {c.sender} overwrote a body that it had not seen"
        raise Broken("every body succeeds the one before", message, c.name)


def a_changed_job_is_reachable(w: Watching, c: Change) -> None:
    reachable(w, c.name, "its record was changed")


# --- agents


def only_the_agent_raises_its_beat(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None:
        return
    raised = c.after.beat - c.before.beat
    if raised != 0 and not (raised == 1 and w.world.is_process_of(c.sender, c.name)):
        message = f"{c.name}: {c.sender} changed its beat from {c.before.beat} to {c.after.beat}"
        raise Broken("only the agent raises its beat", message, c.name)


def the_dead_stay_dead(w: Watching, c: Change) -> None:
    if c.before is None or c.after is None or c.before.state == "live":
        return
    if c.after.state != c.before.state or c.after.holdings.keys() != c.before.holdings.keys():
        raise Broken("the dead stay dead", f"{c.name}: {told_agent(c.before)} became {told_agent(c.after)}", c.name)


def no_outage_kills_an_agent(w: Watching, c: Change) -> None:
    """Silence counts only as far as the storage could be reached; only its own host knows sooner."""
    if c.before is None or c.after is None or c.before.state != "live" or c.after.state != "dead":
        return
    world, (landed, interval) = w.world, w.landed[c.name]
    silent = world.loop.now - landed
    counted = silent - world.time_down_since(landed, 2 * interval)
    if w.world.is_gone(c.name) and world.same_host(c.sender, c.name):
        return
    if counted < DEATH_INTERVALS * interval * DRIFT:
        message = f"{c.name} was declared dead after {silent:.1f} s of silence, {counted:.1f} s of it without an outage"
        raise Broken("no outage kills an agent", message, c.name)


def trust_is_dated_from_before_the_send(w: Watching, c: Change) -> None:
    """Trust ends three intervals after a beat landed, by what that beat promised and by what this one does."""
    if c.before is None or c.after is None or c.after.beat == c.before.beat:
        return
    landed, interval = w.landed[c.name]
    until = min(
        landed + TRUST_INTERVALS * interval / DRIFT, w.world.loop.now + TRUST_INTERVALS * c.after.interval / DRIFT
    )
    trusted = w.world.trusted_until(c.name)
    if trusted is not None and trusted > until:
        message = f"{c.name} trusts itself until {trusted:.3f}, and its beats allow {until:.3f}"
        raise Broken("trust is dated from before the send", message, c.name)


def what_a_record_lists_no_more_is_reachable(w: Watching, c: Change) -> None:
    if c.before is None:
        return
    buried = c.after is None or (c.after.buried and not c.before.buried)
    still = {} if buried else c.after.holdings
    for job in c.before.holdings:
        if job not in still:
            reachable(w, job, f"{c.name} lists it no more" if not buried else f"{c.name} is marked buried")


# --- where their names are used


def reachable(w: Watching, job_id: str, why: str) -> None:
    """Every unfinished job is in a live agent's hands, in the index, or in an unfinished burial.

    A pending job may have lost all that for a moment: the next repair must find it (`repair_found_all`).
    """
    job = w.jobs.get(job_id)
    if job is None or job.status in TERMINAL or job.status == Status.UNADMITTED or _is_findable(w, job):
        w.lost.pop(job_id, None)
    elif job.status == Status.PENDING:
        w.lost.setdefault(job_id, w.world.loop.now)
    else:
        holder = told_agent(w.agents.get(job.lease.agent)) if job.lease else "nobody"
        message = f"{job_id}: {told(job)}, held by {holder}: nobody would ever find it ({why})"
        raise Broken("no job is ever unreachable", message, job_id, job.lease.agent if job.lease else job_id)


def repair_found_all(w: Watching, began: float) -> None:
    """A full repair that began at `began` has ended."""
    for job_id, since in list(w.lost.items()):
        reachable(w, job_id, "a repair ended")
        if job_id in w.lost and since < began:
            message = (
                f"{job_id} has been in no index since {since:.1f}, and the repair since {began:.1f} did not find it"
            )
            raise Broken("the repair finds every job", message, job_id)


def a_drop_is_dealt_with_before_it_goes(w: Watching, key: str, drop: Object, sender: Participant) -> None:
    """Only people take a file away that became nothing."""
    if sender.name.startswith("user"):
        return
    decided = any(
        w.jobs[job].status != Status.UNADMITTED for job in w.made_of.get((key, drop.version), ()) if job in w.jobs
    )
    decided = decided or _stands_for(w, drop)
    if not decided and Inbox.rejected(key, drop.version) not in w.world.storage.contents.objects:
        raise Broken("a drop is dealt with before it goes", f"{sender} removed {key}, and nothing came of it", key)


def one_copy_at_a_time(w: Watching, run: Run, others: list[Run]) -> None:
    """A task may run beside a later attempt's only while its agent is awake, cut off, past its trust (outage grace)."""
    for other in others:
        landed, interval = w.landed[other.agent]
        trust = landed + TRUST_INTERVALS * interval * DRIFT
        record = w.agents.get(other.agent)
        asleep = w.world.asleep_since(other.agent) + _LONGEST_DEADLINE
        if (
            w.world.is_gone(other.agent, for_at_least=0.25)
            or w.world.loop.now < trust
            or w.world.loop.now > max(trust, asleep)
        ):
            state = told_agent(record)
            message = (
                f"{run.job}: attempt {run.attempt} starts while {other.attempt} runs under {other.agent} ({state})"
            )
            raise Broken("one copy at a time", message, run.job, other.agent)


def an_attempt_runs_once(run: Run) -> None:
    raise Broken("an attempt runs once", f"{run.job}: attempt {run.attempt} was started twice", run.job, run.agent)


def _stands_for(w: Watching, drop: Object) -> bool:
    """Whether a job exists that was submitted before under the id that the drop names."""
    try:
        spec = msgspec.json.decode(drop.data)
    except msgspec.DecodeError:
        return False
    job = JobId.given(spec["name"], spec["id"]) if "id" in spec else ""
    return job in w.jobs or Jobs.key(job) in w.gone


def _is_findable(w: Watching, job: JobRecord) -> bool:
    attempts = w.entries.get(job.id, ())
    if job.attempt in attempts or (attempts and (job.status == Status.PENDING or job.spec.actor)):
        return True  # an actor's restarts leave the entry that it was claimed by
    if job.status == Status.RUNNING and job.lease is not None:
        restarting = (job.attempt - 1,) if job.spec.actor else ()
        return _has_hands_on(w, job.lease.agent, job, (job.attempt, *restarting))
    return any(_has_hands_on(w, agent, job, (job.attempt - 1, job.attempt)) for agent in w.world.listing(job.id))


def _has_hands_on(w: Watching, agent: str, job: JobRecord, attempts: tuple[int, ...]) -> bool:
    if w.world.holds_in_memory(agent, job.id, attempts):
        return True
    record = w.agents.get(agent)
    if record is None or record.buried:
        return False
    holding = record.holdings.get(job.id)
    return holding is not None and (record.state != "live" or not w.world.is_up(agent))


def _result_of(w: Watching, job: JobRecord) -> dict[str, object] | None:
    if job.result is None:
        return None
    if job.result.key:
        found = w.world.storage.contents.objects.get(job.result.key)
        return msgspec.json.decode(found.data) if found else None
    value: dict[str, object] = job.result.value
    return value


def told(job: JobRecord | None) -> str:
    """The job's state in a few words."""
    if job is None:
        return "deleted"
    parts = [f"{job.status} attempt={job.attempt}"]
    parts += [f"lease={job.lease.agent}"] if job.lease else []
    parts += [f"stop by {job.stop.by}"] if job.stop else []
    parts += [f"exit={job.exit.kind}"] if job.exit else []
    parts += [f"budgets={job.failures}/{job.preemptions}/{job.agent_deaths}/{job.start_failures}"]
    parts += [f"parent={job.parent.job}~{job.parent.attempt}"] if job.parent else []
    return " ".join(parts)


def told_agent(agent: AgentRecord | None) -> str:
    """The agent's state in a few words."""
    if agent is None:
        return "absent"
    holds = ",".join(f"{job}~{h.attempt}:{h.phase}" for job, h in agent.holdings.items())
    marks = "".join(f" {name}" for name in ("mail", "drain", "buried") if getattr(agent, name))
    return f"{agent.state} beat={agent.beat} every {agent.interval:g} s{marks} holds [{holds}]"


OF_JOBS = [
    a_deleted_name_is_never_born_again,
    nothing_leaves_a_terminal_state,
    only_transitions_of_the_table,
    attempts_only_grow,
    a_job_that_kills_its_hosts_fails,
    a_stopped_job_starts_no_more,
    one_result_and_it_is_the_attempts_own,
    outputs_come_before_the_commit,
    a_complete_result_is_never_thrown_away,
    preemption_never_spends_the_failure_budget,
    a_claim_is_listed_by_its_holder,
    a_child_is_indexed_before_it_exists,
    a_record_outlives_what_belongs_to_it,
    a_drop_becomes_one_job,
    an_overwritten_drop_does_not_run,
    unknown_fields_survive,
    a_changed_job_is_reachable,
    every_body_succeeds_the_one_before,
]

OF_AGENTS = [
    a_deleted_name_is_never_born_again,
    only_the_agent_raises_its_beat,
    the_dead_stay_dead,
    no_outage_kills_an_agent,
    trust_is_dated_from_before_the_send,
    what_a_record_lists_no_more_is_reachable,
    unknown_fields_survive,
    every_body_succeeds_the_one_before,
]
