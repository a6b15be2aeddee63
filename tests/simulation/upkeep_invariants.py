"""Invariants of what operators do: retries, time limits, places, dropped children, and what a repair removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_coordinator.store.interface import Object
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import AsideKeys
from fray_layouts.records import AttemptExit, JobRecord, Rejection
from fray_layouts.states import ExitKind
from fray_layouts.work_keys import InboxKeys, WorkKeys
from tests.simulation.invariants import Broken, told
from tests.simulation.loop import Participant
from tests.simulation.strangers import is_misfit
from tests.simulation.work import is_place_for

if TYPE_CHECKING:
    from tests.simulation.effects import Run
    from tests.simulation.watching import Change, Watching

LATEST_END = 1.0
"""Seconds after its time limit and its grace in which a task has been killed."""


# --- of jobs' records


def a_retry_runs_what_has_ended(w: Watching, c: Change) -> None:
    """The new job runs what the old one ran, on its own; only the pool may be another, if its reservation has ended."""
    job = c.after
    if c.before is not None or job is None or not job.retry_of or job.retry_of in w.world.strangers.harmed:
        return
    old = w.jobs.get(job.retry_of)
    if old is None or old.submitted_at > job.submitted_at:
        return  # it has been removed since, and its id may be another job's now
    same = replace(old.spec, id="", parent="", detached=False, pool=job.spec.pool) == job.spec
    if old.status not in TERMINAL or not same or job.parent is not None:
        message = f"{job.id} was submitted as a retry of {old.id}, which is {told(old)}: {told(job)}"
        raise Broken("a retry runs what has ended, on its own", message, job.id, old.id)


def a_dropped_child_has_its_parent(w: Watching, c: Change) -> None:
    job = c.after
    if c.before is not None or job is None or job.inbox is None:
        return
    named = w.parents_named.get((job.inbox.key, job.inbox.version))
    parent = job.parent.job if job.parent is not None else ""
    if named is not None and parent != named:
        message = f"{job.id} was made of a file that names the parent {named!r}, and has {parent!r}"
        raise Broken("a dropped child has the parent that it names", message, job.id, job.inbox.key)


def a_timed_out_attempt_ends_as_such(w: Watching, c: Change) -> None:
    """The word of a holder that knows how the task ended: "timeout" if that was its end, and only then."""
    before, after = c.before, c.after
    if before is None or after is None or before.status != Status.RUNNING or before.lease is None:
        return
    if (after.status, after.attempt) == (before.status, before.attempt) or before.stop is not None:
        return
    run = w.world.effects.of(c.name, before.attempt)
    if run is None or not run.told or not w.world.acts_for(c.sender, before.lease.agent):
        return
    if w.world.mishaps.since(run.begin, run.host):
        return
    end = _end_of(after, before.attempt)
    if (end is not None and end.kind == ExitKind.TIMEOUT) != (run.how == "timeout"):
        message = f"{c.name}: attempt {before.attempt} ended by {run.how}, and its agent says {end}"
        raise Broken("a timed-out attempt ends as such", message, c.name)


def _end_of(job: JobRecord, attempt: int) -> AttemptExit | None:
    if job.attempt == attempt:
        return job.exit
    return next((past.exit for past in reversed(job.history) if past.attempt == attempt), None)


OF_JOBS = [a_retry_runs_what_has_ended, a_dropped_child_has_its_parent, a_timed_out_attempt_ends_as_such]


# --- of tasks


def a_job_runs_where_it_may(w: Watching, run: Run) -> None:
    job = w.jobs.get(run.job)
    host = next((host for host in w.world.hosts if host.name == run.host), None)
    if job is not None and host is not None and not is_place_for(job.spec, host.place):
        message = f"{job.id} wants {job.spec.resources}, and starts on {host.name}, which is at {host.place}"
        raise Broken("a job runs only where it may", message, job.id, run.agent)


def an_attempt_ends_by_its_time_limit(w: Watching, run: Run) -> None:
    job = w.jobs.get(run.job)
    if job is None or job.spec.timeout is None or run.end is None:
        return
    longest = job.spec.timeout + job.spec.grace + LATEST_END
    if run.end - run.begin > longest:
        message = f"{run.told_as} ran for {run.end - run.begin:.1f} s, and {longest:.1f} s are the most"
        raise Broken("an attempt ends by its time limit", message, run.job, run.agent)


# --- of other objects


def on_write(w: Watching, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
    """Check one applied write of an object that is no record of a job or an agent."""
    if key.startswith(AsideKeys.area) and after is not None and before is None:
        _only_misfits_are_set_aside(key, after)
    elif key.startswith(InboxKeys.rejected_prefix) and after is not None and before is None:
        _a_dropped_child_waits_for_its_parent(w, after)
    elif after is None and sender is not w.world.strangers.owner:
        _data_stays_with_its_job(w, key)
        _a_living_child_stays_indexed(w, key)


def parent_named_by(drop: Object) -> str | None:
    """The parent that a dropped file names; None if it is no spec."""
    try:
        spec = msgspec.json.decode(drop.data)
    except (ValueError, RecursionError):
        return None
    return str(spec.get("parent") or "") if isinstance(spec, dict) and "entrypoint" in spec else None


def _only_misfits_are_set_aside(key: str, after: Object) -> None:
    origin = AsideKeys.parse(key)
    if origin is None or not is_misfit(origin, after.data):
        message = f"{origin} was what its name says, and lies under {key} now"
        raise Broken("only what cannot be used is set aside", message, origin or key)


def _a_dropped_child_waits_for_its_parent(w: Watching, after: Object) -> None:
    """A parent that has ended stays so; one that waits for its next attempt has not."""
    rejection = msgspec.json.decode(after.data, type=Rejection)
    if not rejection.reason.startswith("the parent "):
        return
    parent = parent_named_by(Object(rejection.content.encode(), "", 0.0)) or ""
    record = w.jobs.get(parent) if parent not in w.world.strangers.harmed else None
    if record is not None and record.status not in TERMINAL:
        message = f"{rejection.key} was rejected ({rejection.reason}), and its parent is {told(record)}"
        raise Broken("a dropped child waits for its parent", message, rejection.key, parent)


def _data_stays_with_its_job(w: Watching, key: str) -> None:
    """Logs, results and outputs are removed once their job's record is marked, or if it has none.

    A durable actor removes its older checkpoints itself.
    """
    job, attempt = WorkKeys.parse(key) or ("", 0)
    record = w.jobs.get(job) if job not in w.world.strangers.harmed else None
    if record is not None and not record.expiring and attempt:
        raise Broken("data stays with its job", f"{key} is removed, and the job is {told(record)}", job)


def _a_living_child_stays_indexed(w: Watching, key: str) -> None:
    entry = ChildKey.parse(key)
    child = w.jobs.get(entry.child) if entry is not None else None
    if entry is None or child is None or child.id in w.world.strangers.harmed or child.parent is None:
        return
    is_current = (child.parent.job, child.parent.attempt) == (entry.parent, entry.attempt)
    if is_current and not child.parent.detached and child.status not in TERMINAL:
        raise Broken("a living child stays indexed", f"{key} is removed, and the child is {told(child)}", child.id)
