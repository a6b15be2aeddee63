"""Checks for objects that differ from what their keys promise, and for data and inbox files that nobody owns.

A record is written before its data, and a blob before the record that names it.
"""

from collections.abc import Iterator
from functools import partial

from fray_coordinator.core import Core
from fray_coordinator.errors import REMOVE_HINT, BadRecord
from fray_coordinator.fsck.index_checks import removal_of
from fray_coordinator.fsck.report import (
    AREAS,
    BY_FSCK,
    BY_HAND,
    BY_REPAIR,
    BY_SETTING_ASIDE,
    BY_SWEEP,
    CONSEQUENCES,
    SET_ASIDE,
    Kind,
    Moved,
    Problem,
    SuspectedProblem,
)
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.logs import may_lack_middle
from fray_coordinator.protocol.environments import blobs_named
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.naming import is_stale
from fray_coordinator.protocol.retention import oldest_kept_month, unneeded_blobs
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.interface import ABSENT
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import (
    AgentKeys,
    ArchiveKeys,
    AsideKeys,
    BlobKeys,
    CoordinatorKeys,
    JobKeys,
    PoolKeys,
    ReservationKeys,
)
from fray_layouts.spec import blobs_of
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import InboxKeys, WorkKeys


def unusable_objects(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find objects that are unreadable, lie under another's key, or have a key without a meaning."""
    for key, problem in seen.unreadable.items():
        with seen.judging(key):
            yield _unreadable(seen, key, problem.removesuffix(REMOVE_HINT))
    for key, own in seen.misplaced.items():
        remedy = f"move it there if nothing lies there; else {BY_HAND}"
        yield SuspectedProblem(Problem(key, f"it holds a record that belongs under {own}", remedy))
    for key in seen.strays:
        yield SuspectedProblem(_stray(key))
    for area, why in seen.unlisted.items():
        yield SuspectedProblem(_unlisted(area, why))
    for key in seen.foreign:
        what = "it does not belong to Fray, which never reads it and never removes it"
        remedy = "move it out of this root, unless a newer version of Fray put it here"
        yield SuspectedProblem(Problem(key, what, remedy))


def skipped_by_reconciler(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find objects that the running reconciler skips although they can be read here."""
    if seen.reconciler is None or not seen.reconciler_runs():
        return
    last = seen.reconciler.record
    named = {*seen.unreadable, *seen.misplaced, *seen.strays, *seen.drops}
    existing = {key for keys in seen.keys.values() for key in keys}
    for key, problem in last.problems.items():
        if key not in named and (key in existing or key.endswith("/")):
            what = f"the reconciler's last pass skipped it: {problem.removesuffix(REMOVE_HINT)}"
            yield SuspectedProblem(Problem(key, what, "the next pass tries again; if it stays so, look at it"))
    if last.problems_omitted:
        what = f"the reconciler's last pass skipped more objects than it lists: {last.problems_omitted} more"
        yield SuspectedProblem(Problem(CoordinatorKeys.reconciler, what, "deal with those that are named first"))


def _unlisted(area: str, why: str) -> Problem:
    if area == "/":
        what = f"what lies here beside Fray's own objects cannot be listed ({why})"
        return Problem(area, what, "Fray does not need it; better give the cluster a folder of its own")
    what = f"it cannot be listed ({why}): nothing there was checked, nor anything that depends on it"
    return Problem(area, what, "make sure that the storage answers and the credentials may list it, then look again")


def _stray(key: str) -> Problem:
    if key.startswith(InboxKeys.area):
        what = "no agent looks at it, so it becomes no job: specs are inbox/<name>.json, right in the inbox"
        return Problem(key, what, "rename it, or remove it")
    return Problem(key, "Fray never uses such a name in this folder", BY_HAND)


def _unreadable(seen: Snapshot, key: str, problem: str) -> SuspectedProblem:
    kind = _kind(key)
    means, remedy = CONSEQUENCES[kind]
    what, pool = f"{means} ({problem})", PoolKeys.parse_doorbell(key)
    if pool is not None:
        return SuspectedProblem(Problem(key, what, BY_FSCK), fix=partial(notifications.ring, pool=pool))
    if kind in SET_ASIDE and not _is_in_use(seen, key):
        return SuspectedProblem(Problem(key, what, BY_SETTING_ASIDE), fix=partial(set_aside, key=key, kind=kind))
    return SuspectedProblem(Problem(key, what, remedy))


def _is_in_use(seen: Snapshot, key: str) -> bool:
    """Whether something that has not ended depends on an unreadable job, reservation or exit, or may do so."""
    job, reservation, work = JobKeys.parse(key), ReservationKeys.parse(key), WorkKeys.parse(key)
    if job is not None:
        live = (agent for agent in seen.agents.values() if not is_fenced(agent))
        agents = any(seen.is_doubtful(agent) for agent in seen.keys.get(AgentKeys.area, ()))
        return agents or AgentKeys.area in seen.unlisted or any(job in agent.holdings for agent in live)
    if JobKeys.area in seen.unlisted:
        return True
    if reservation is not None:
        pool = ReservationKeys.pool(reservation)
        doubtful = any(seen.is_doubtful(other) for other in seen.keys.get(JobKeys.area, ()))
        return doubtful or any(other.spec.pool == pool and not is_terminal(other) for other in seen.jobs.values())
    if work is not None:  # the exit of a replica of this gang
        gang = seen.jobs.get(work[0])
        return seen.is_doubtful(JobKeys.key(work[0])) or (gang is not None and not is_terminal(gang))
    return False


async def set_aside(core: Core, key: str, kind: Kind) -> Moved | None:
    """Move an object that is not what its key promises out of the way; None if it is gone, or what it should be.

    The copy is made first, so an interruption leaves the object where it was.
    """
    found = await core.store.get(key)
    if found is None or await _is_readable(core, key, kind):
        return None
    to = AsideKeys.key(key, core.now(), core.rng.token())
    await core.store.put(to, found.data, ABSENT)
    await core.store.delete(key, found.version)
    return Moved(key, to)


async def _is_readable(core: Core, key: str, kind: Kind) -> bool:
    try:
        await core.records.read(key, kind)
    except BadRecord:
        return False
    return True


def _kind(key: str) -> Kind:
    kind = next(area.kind(key) for area in AREAS if key.startswith(area.prefix))
    assert kind is not None, "strays are not read"
    return kind


def stuck_drops(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find old files in the inbox that no agent would admit, or that the reconciler should have handled."""
    watched = seen.reconciler_runs()
    for key, drop in seen.drops.items():
        with seen.judging(key):
            fault = _fault(drop.data)
            if seen.now - drop.updated <= seen.patience:
                continue
            if watched:
                what = f"agents run, and have neither admitted nor rejected it{_reason_of_last_pass(seen, key)}"
                yield SuspectedProblem(
                    Problem(key, what, "drop it again under another name, and remove this one"), (drop.version,)
                )
            elif fault:
                what = f"it cannot become a job: {fault}"
                remedy = "drop it again as it should be; as it is, the next agent that runs rejects it"
                yield SuspectedProblem(Problem(key, what, remedy), (drop.version,))


def _reason_of_last_pass(seen: Snapshot, key: str) -> str:
    """The reason why the last pass skipped the file."""
    problem = seen.reconciler.record.problems.get(key, "") if seen.reconciler is not None else ""
    return f" ({problem.removesuffix(REMOVE_HINT)})" if problem else ""


def _fault(data: bytes) -> str:
    try:
        parse_spec(data)
    except InvalidInput as error:
        return str(error)
    return ""


def ownerless_work(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find logs and results of jobs and attempts that never existed or are gone."""
    for key in seen.keys[WorkKeys.area]:
        with seen.judging(key):
            job_id, attempt = WorkKeys.parse(key) or ("", 0)
            job = seen.jobs.get(job_id)
            if not seen.has_job(job_id):
                yield SuspectedProblem(
                    Problem(key, "it belongs to a job that has no record", BY_SWEEP), fix=removal_of(key)
                )
            elif job is not None and attempt > job.attempt:
                what = f"it belongs to an attempt that never existed: the job's record says {job.attempt}"
                yield SuspectedProblem(Problem(key, what, BY_HAND), seen.versions(JobKeys.key(job_id)))


def missing_log_chunks(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find missing log chunks. Chunks are stored before the record counts them, and deleted after it is marked.

    Those behind the first part of a log are missing if it was above its limit.
    """
    existing = set(seen.keys[WorkKeys.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            ends = {past.attempt: past.exit for past in job.history} | {job.attempt: job.exit}
            for attempt, end in ends.items() if not job.expiring else ():
                count = (end.log_chunks or 0) if end is not None else 0
                chunks = (WorkKeys.log(job.id, attempt, 0, number + 1) for number in range(count))
                if may_lack_middle(job.spec.log_limit, count) and WorkKeys.log(job.id, attempt, 0, count) in existing:
                    continue
                if (gone := next((key for key in chunks if key not in existing), None)) is not None:
                    what = (
                        f"of the {count} parts of the log of attempt {attempt}, {gone} is gone: the log ends before it"
                    )
                    remedy = "nothing brings it back; run the job again if its log is needed"
                    yield SuspectedProblem(
                        Problem(JobKeys.key(job.id), what, remedy), seen.versions(JobKeys.key(job.id))
                    )


def ownerless_blobs(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find blobs that no job and no pool names; only if all records can be read, because any record may name one."""
    pools = [key for key in seen.keys[PoolKeys.area] if PoolKeys.parse_record(key)]
    if any(seen.is_doubtful(key) for key in (*pools, *seen.keys[JobKeys.area], *seen.keys[ArchiveKeys.area])):
        return
    used: set[str] = set()
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            used.update(blobs_of(job.spec))
    for key in pools:
        with seen.judging(key):
            used.update(blobs_named(seen.stored[key].record) if key in seen.stored else ())
    if not seen.judged_all:
        return
    for key in unneeded_blobs(seen.keys[BlobKeys.area], used, oldest_kept_month(seen.now, seen.settings)):
        yield SuspectedProblem(Problem(key, "no job needs it", BY_SWEEP), fix=removal_of(key))


def stale_endpoints(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find endpoints of actors whose jobs no longer run."""
    for endpoint in seen.endpoints:
        with seen.judging(endpoint.key):
            job = JobKeys.key(endpoint.record.job)
            if seen.is_doubtful(job) or not seen.is_settled(endpoint.key, job):
                continue
            if is_stale(endpoint.record, seen.jobs.get(endpoint.record.job)):
                what = "it is the address of an actor whose job no longer runs"
                yield SuspectedProblem(Problem(endpoint.key, what, BY_REPAIR), seen.versions(endpoint.key, job))
