"""Invariants that must always hold, each as a function; a name and a message say what is broken.

This module has those of any record, and those that other modules call by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from fray_coordinator.protocol.heartbeat import TRUST_INTERVALS
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_coordinator.store.interface import Object
from fray_layouts.object_keys import AgentKeys, ArchiveKeys, JobIds, JobKeys
from fray_layouts.records import AgentRecord, ClusterSettings, JobRecord, Placement
from fray_layouts.spec import is_gang
from fray_layouts.work_keys import InboxKeys
from tests.simulation.effects import Run
from tests.simulation.loop import Participant

if TYPE_CHECKING:
    from tests.simulation.watching import Change, Watching

DRIFT = 0.97
"""The least share of a time-out that passes, seen from outside, on clocks that are 1 % fast or slow."""

_LONGEST_DEADLINE = (2 * ClusterSettings().beat_interval + 1.5) / DRIFT
"""Most seconds for which a task may outlive its frozen agent's trust."""

_LONGEST_WAIT = 50.0
"""Seconds between two requests of an awake agent that wants to beat: a time-out, a retry's wait, a short freeze."""

_ID_CHECK = 65.0
"""Seconds from the time in a submission's record until it has seen that its id is free: one call, one freeze."""


class Broken(AssertionError):
    """An invariant does not hold. invariant: its name; about: the ids and keys whose history to print."""

    def __init__(self, invariant: str, message: str, *about: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.about = list(about)


def told(job: JobRecord | None) -> str:
    """The job's state in a few words."""
    if job is None:
        return "deleted"
    parts = [f"{job.status} attempt={job.attempt}"]
    parts += [f"lease={job.lease.agent}"] if job.lease else []
    parts += [told_placement(job.placement)] if job.placement else []
    parts += [f"stop by {job.stop.by}"] if job.stop else []
    parts += [f"exit={job.exit.kind}"] if job.exit else []
    parts += [f"budgets={job.failures}/{job.preemptions}/{job.agent_deaths}/{job.start_failures}"]
    parts += [f"parent={job.parent.job}~{job.parent.attempt}"] if job.parent else []
    return " ".join(parts)


def told_placement(placement: Placement) -> str:
    """The members in a few words."""
    members = " ".join(f"{member.agent}:{','.join(map(str, member.bundles))}" for member in placement.members)
    more = f" until={placement.until:.0f}" if placement.until is not None else ""
    return f"round={placement.round} moves={placement.moves} refused={placement.refused} members=[{members}]{more}"


def told_agent(agent: AgentRecord | None) -> str:
    """The agent's state in a few words."""
    if agent is None:
        return "absent"
    held = agent.holdings.items()
    holds = ",".join(f"{job}~{h.attempt}:{h.phase}" + f"@{h.round}" * (h.round > 0) for job, h in held)
    marks = "".join(f" {name}" for name in ("mail", "drain", "reaped") if getattr(agent, name))
    return f"{agent.state} beat={agent.beat} every {agent.interval:g} s{marks} holds [{holds}]"


# --- of any record


def a_deleted_name_is_never_born_again(w: Watching, c: Change) -> None:
    """A deleted name in `jobs/` may come back only by a new submission with an id that the submitter chose."""
    key = JobKeys.key(c.name) if isinstance(c.after, JobRecord) else AgentKeys.key(c.name)
    gone = w.gone.get(key)
    if c.before is not None or c.after is None or gone is None:
        return
    if isinstance(c.after, JobRecord) and c.after.spec.id and _is_new(w, c.after, c.sender, gone):
        return
    message = f"{key} was deleted at {gone:.1f} and is back: {msgspec.json.encode(c.after)[:200]!r}"
    raise Broken("a deleted name is never born again", message, c.name)


def _is_new(w: Watching, job: JobRecord, sender: Participant, gone: float) -> bool:
    """Whether another submission made the job than the previous one, whose job was gone at `gone`."""
    if job.inbox is not None:
        return w.made_of[job.inbox.key, job.inbox.version].count(job.id) == 1
    read_at = w.world.storage.found_absent.get((sender, ArchiveKeys.key(job.id)), 0.0)
    return read_at > gone and job.submitted_at - w.world.epoch > gone - _ID_CHECK


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


# --- called by name


def reachable(w: Watching, job_id: str, why: str) -> None:
    """Every unfinished job is held by a live agent, in the index, or listed by a dead agent that is not reaped yet.

    A pending job or a gang may be none of these for a moment; the next repair must find it (`repair_found_all`).
    """
    job = w.jobs.get(job_id) if job_id not in w.world.strangers.harmed else None
    if job is None or job.status in TERMINAL or job.status == Status.UNADMITTED or _is_findable(w, job):
        w.lost.pop(job_id, None)
    elif job.status == Status.PENDING or job.driver or is_gang(job.spec):
        w.lost.setdefault(job_id, w.world.loop.now)
    else:
        holder = told_agent(w.agents.get(job.lease.agent)) if job.lease else "nobody"
        message = f"{job_id}: {told(job)}, held by {holder}: nobody would ever find it ({why})"
        raise Broken("no job is ever unreachable", message, job_id, job.lease.agent if job.lease else job_id)


def repair_found_all(w: Watching, began: float, problems: Iterable[str]) -> None:
    """Check a full repair that began at `began` and has ended. problems: what it could not do."""
    for job_id, since in list(w.lost.items()):
        reachable(w, job_id, "a repair ended")
        if job_id in w.lost and since < began and not {JobKeys.key(job_id), "pending/"} & set(problems):
            message = (
                f"{job_id} has been in no index since {since:.1f}, and the repair since {began:.1f} did not find it"
            )
            raise Broken("the repair finds every job", message, job_id)


def a_working_holder_keeps_the_pass(w: Watching, before: str, after: str) -> None:
    """With any objects under the root, a pass takes less time than its lease lasts, unless its holder cannot beat."""
    world = w.world
    if world.stormy or world.loop.now - world.calm_since < _LONGEST_WAIT or not after:
        return
    if before in world.strangers.harmed:
        return
    if before in world.agents and world.works(before) and not world.agents[before].member.leaving:
        raise Broken("a working holder keeps the pass", f"{after} took it from {before}, which works", before, after)


def a_drop_is_dealt_with_before_it_goes(w: Watching, key: str, drop: Object, sender: Participant) -> None:
    """Only people remove a file that did not become a job."""
    if sender.name.startswith(("user", "stranger")):
        return
    made = w.made_of.get((key, drop.version), ())
    decided = any(job in w.world.strangers.harmed for job in made)
    decided = decided or any(w.jobs[job].status != Status.UNADMITTED for job in made if job in w.jobs)
    decided = decided or _stands_for(w, drop)
    if not decided and InboxKeys.rejected(key, drop.version) not in w.world.storage.contents.objects:
        raise Broken("a drop is dealt with before it goes", f"{sender} removed {key}, and nothing came of it", key)


def one_copy_at_a_time(w: Watching, run: Run, others: list[Run]) -> None:
    """A task may run beside a later attempt's only in the outage grace: its agent is awake, its trust has ended, and
    its requests for its own record get no answer."""
    now = w.world.loop.now
    for other in others:
        landed, interval = w.landed[other.agent]
        trust = landed + TRUST_INTERVALS * interval * DRIFT
        asleep = w.world.asleep_since(other.agent) + _LONGEST_DEADLINE
        gone = w.world.is_gone(other.agent, for_at_least=0.25)
        if gone or now < trust or now > max(trust, asleep) or now > w.world.last_asked(other.agent) + _LONGEST_WAIT:
            state = told_agent(w.agents.get(other.agent))
            message = (
                f"{run.job}: attempt {run.attempt} starts while {other.attempt} runs under {other.agent} ({state})"
            )
            raise Broken("one copy at a time", message, run.job, other.agent)


def the_outage_grace_ends(w: Watching, run: Run) -> None:
    """A task ends when the trust in its lease ends, or a grace later if it is not a gang's; also without an agent."""
    landed, interval = w.landed[run.agent]
    grace = w.world.scenario.outage_grace if run.replicas == 1 else 0.0
    until = landed + (TRUST_INTERVALS * interval + grace) / DRIFT
    if run.end is not None and run.end > until:
        message = (
            f"{run.job}~{run.attempt} ended at {run.end:.1f}, its agent's trust and a grace of {grace:.0f} s before"
        )
        raise Broken("the outage grace ends", message, run.job, run.agent)


def an_attempt_runs_once(run: Run) -> None:
    raise Broken("an attempt runs once", f"{run.job}: attempt {run.attempt} was started twice", run.job, run.agent)


def _stands_for(w: Watching, drop: Object) -> bool:
    """Whether a job exists that was submitted earlier under the id that the drop names."""
    job = job_named_by(drop)
    return job in w.jobs or JobKeys.key(job) in w.gone


def job_named_by(drop: Object) -> str:
    """The job's id that the drop names; "" if it names none."""
    try:
        spec = msgspec.json.decode(drop.data)
    except (ValueError, RecursionError):
        return ""
    named = isinstance(spec, dict) and "id" in spec and "name" in spec
    return JobIds.given(spec.get("namespace") or "", spec["name"], spec["id"]) if named else ""


def _is_findable(w: Watching, job: JobRecord) -> bool:
    if is_gang(job.spec):
        return job.id in w.placed
    attempts = w.entries.get(job.id, ())
    if job.attempt in attempts or (attempts and (job.status == Status.PENDING or job.spec.actor)):
        return True  # an actor's restarts keep the entry by which it was claimed
    if job.status == Status.RUNNING and job.lease is not None:
        restarting = (job.attempt - 1,) if job.spec.actor else ()
        return _has_hands_on(w, job.lease.agent, job, (job.attempt, *restarting))
    return any(_has_hands_on(w, agent, job, (job.attempt - 1, job.attempt)) for agent in w.world.listing(job.id))


def _has_hands_on(w: Watching, agent: str, job: JobRecord, attempts: tuple[int, ...]) -> bool:
    if w.world.holds_in_memory(agent, job.id, attempts):
        return True
    record = w.agents.get(agent)
    if record is None:  # the repair finds a job whose holder has no readable record
        return AgentKeys.key(agent) in w.world.strangers.overwritten
    if record.reaped:
        return False
    holding = record.holdings.get(job.id)
    return holding is not None and (record.state != "live" or not w.world.is_up(agent))
