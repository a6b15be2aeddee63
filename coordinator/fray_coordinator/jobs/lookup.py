"""Finds jobs and agents for people (by id, by part of an id, by activity), and the resources that a job uses.

Every heartbeat of an agent updates its record with its jobs' usage and its free resources. An agent of a private
cluster makes heartbeats only on request.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf

from msgspec.structs import replace

from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, JobNotFound
from fray_coordinator.jobs.job_archive import archived_rows, find_record
from fray_coordinator.jobs.notifications import post_mail
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, with_bounded_interval
from fray_coordinator.protocol.placements.owners import GANG
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PendingKey, PlacementKey
from fray_layouts.object_keys import AgentKeys, ArchiveKeys, JobIds, JobKeys, ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, ReservationRecord, ResourceUsage, total_usage
from fray_layouts.spec import is_gang
from fray_layouts.states import AgentState
from fray_layouts.units import first_names

READS_OF_SILENT_AGENTS = 3
"""Reads of a record before its agent is called silent."""

_MAX_SHOWN = 5
"""Ids that an error lists if a text matches many jobs."""


async def read_job(core: Core, job_id: str) -> Stored[JobRecord]:
    """The record of a job; raises JobNotFound."""
    found = await find_record(core, JobIds.checked(job_id))
    if found is None:
        raise await job_not_found(core, job_id)
    return found


async def find_reservation(core: Core, reservation: str) -> ReservationRecord | None:
    """The record of a reservation or a launch group; None if there is none. Raises BadRecord: it cannot be read.

    It is for ids that come from records. For an id that a user gives, `placements.reservations.read` checks the id and
    raises an error with a remedy.
    """
    return record_of(await core.records.read(ReservationKeys.key(reservation), ReservationRecord, one_of_many=True))


async def find_job(core: Core, text: str, eligible: Callable[[JobRecord], bool] | None = None) -> Stored[JobRecord]:
    """Find the job for `text`: its id, the beginning of its id, or its name. Archived jobs only if no other matches.

    Args:
        eligible: prefers these jobs if several match; None prefers none.

    Raises:
        JobNotFound: no job matches.
        InvalidInput: several jobs match.
    """
    exact = await find_record(core, JobIds.checked(text))
    if exact is not None:
        return exact
    rows = await core.store.list(JobKeys.area + text)
    ids = [job for job in (JobKeys.parse(row.key) for row in rows) if job]
    fitting = _best_matches(ids, text)
    if not fitting:
        pages = archived_rows(core, text=text)
        fitting = _best_matches([ArchiveKeys.parse(row.key) or "" async for page in pages for row in page], text)
    if not fitting:
        raise await job_not_found(core, text)
    if len(fitting) > 1 and eligible is not None:
        fitting = [job.id for job in await read_jobs(core, fitting, {}) if eligible(job)] or fitting
    if len(fitting) > 1:
        shown = first_names(fitting, _MAX_SHOWN)
        raise InvalidInput("job", text, f"{len(fitting)} jobs match ({shown}); give more of the id")
    return await read_job(core, fitting[0])


def _best_matches(ids: list[str], text: str) -> list[str]:
    """Of ids that begin with the text, those whose name it is; if there are none, all."""
    return [job for job in ids if job.rpartition("-")[0] == text] or ids


async def all_jobs(core: Core, problems: dict[str, str]) -> list[JobRecord]:
    """Every job's record, in order of submission; those that cannot be read are noted in `problems`."""
    keys = await _keys_of_all(core)
    return in_order(await _read_listed(core, keys, keys, problems))


async def last_jobs(
    core: Core,
    problems: dict[str, str],
    is_wanted: Callable[[JobRecord], bool],
    is_possible: Callable[[str], bool],
    limit: int,
) -> list[JobRecord]:
    """Of the wanted jobs, also those that have ended, the last so many that were submitted; the rest as `active_jobs`.

    Of earlier jobs, only those are read whose ids have no time in them.
    """
    keys = await _keys_of_all(core)

    async def read(ids: list[str]) -> list[JobRecord]:
        return [job for job in await _read_listed(core, keys, ids, problems) if is_wanted(job)]

    return await _last_submitted({job: _submitted(job) for job in keys if is_possible(job)}, read, limit)


async def job_ids(core: Core) -> list[str]:
    """The ids of all jobs, also of archived ones, without reading any record."""
    return [job for job in await _keys_of_all(core) if job]


async def _keys_of_all(core: Core) -> dict[str, str]:
    """By id, the key of each job's record. A record moves from `jobs/` to the archive, which is listed second."""
    rows = await core.store.list(JobKeys.area)
    keys = {job: row.key for row in rows if (job := JobKeys.parse(row.key))}
    async for page in archived_rows(core):
        for row in page:
            keys.setdefault(ArchiveKeys.parse(row.key) or "", row.key)
    return keys


async def _read_listed(
    core: Core, keys: Mapping[str, str], ids: Iterable[str], problems: dict[str, str]
) -> list[JobRecord]:
    async def read(job: str) -> JobRecord | None:
        if keys[job].startswith(JobKeys.area):
            return record_of(await find_record(core, job, one_of_many=True))
        return record_of(await core.records.read(keys[job], JobRecord, one_of_many=True))

    return [job for job in await map_noting_problems(ids, read, problems, keys.__getitem__) if job is not None]


def _submitted(job_id: str) -> float:
    """The time of submission, as far as the id tells; jobs whose ids do not tell it are read first."""
    return inf if (submitted := JobIds.time_of(job_id)) is None else submitted


async def _last_submitted(
    times: Mapping[str, float], read: Callable[[list[str]], Awaitable[list[JobRecord]]], limit: int | None
) -> list[JobRecord]:
    """The last so many wanted jobs, in order of submission; None: all.

    Args:
        times: by id, when the jobs were submitted; infinity if only the record tells.
        read: returns those of these ids that are wanted.
    """
    left = sorted(times, key=lambda job: times[job])
    found: list[JobRecord] = []
    while left:
        wanting = len(left) if limit is None else limit - sum(job.submitted_at >= times[left[-1]] for job in found)
        if wanting <= 0:
            break
        left, batch = left[: max(len(left) - wanting, 0)], left[-wanting:]
        found += await read(batch)
    found = in_order(found)
    return found if limit is None else found[-limit:]


async def active_jobs(
    core: Core,
    agents: Iterable[AgentRecord],
    problems: dict[str, str],
    is_wanted: Callable[[JobRecord], bool],
    is_possible: Callable[[str], bool],
    limit: int | None = None,
) -> list[JobRecord]:
    """The wanted jobs that wait or run, found by the indexes and the agents' holdings: finished jobs cost nothing.

    Args:
        is_possible: whether the job of this id may be wanted; others are not read.
        limit: only the last so many that were submitted; earlier ones are not read, as far as ids and entries tell.
    """
    pending = [PendingKey.parse(row.key) for row in await core.store.list(PendingKey.area)]
    owners = [PlacementKey.parse(row.key) for row in await core.store.list(PlacementKey.area)]
    times = {entry.job: entry.time for entry in pending if entry}
    times |= {entry.owner: entry.time for entry in owners if entry and entry.kind == GANG}
    for job in (job for agent in agents for job in agent.holdings if job not in times):
        times[job] = _submitted(job)

    async def read(ids: list[str]) -> list[JobRecord]:
        return [job for job in await read_jobs(core, ids, problems) if job.ended_at is None and is_wanted(job)]

    return await _last_submitted({job: times[job] for job in times if is_possible(job)}, read, limit)


async def read_jobs(core: Core, ids: Iterable[str], problems: dict[str, str]) -> list[JobRecord]:
    """The existing records of these ids, in order of submission; those that cannot be read are noted in `problems`."""
    found = await jobs_by_id(core, ids, problems)
    return in_order(job for job in found.values() if job)


def in_order(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """The jobs in order of submission."""
    return sorted(jobs, key=lambda job: (job.submitted_at, job.id))


async def jobs_by_id(core: Core, ids: Iterable[str], problems: dict[str, str]) -> dict[str, JobRecord | None]:
    """By id: the record, or None if there is none; ids whose records cannot be read are only noted in `problems`."""

    async def read(job: str) -> tuple[str, JobRecord | None]:
        return job, record_of(await find_record(core, job, one_of_many=True))

    return dict(await map_noting_problems(ids, read, problems, JobKeys.key))


async def read_agents(core: Core, problems: dict[str, str]) -> list[Stored[AgentRecord]]:
    """Every agent's record, with its interval bounded; those that cannot be read are noted in `problems`.

    An agent that seems silent is read again: storage may give wrong times now and then, and its latest time counts.
    """

    async def read(key: str) -> Stored[AgentRecord] | None:
        latest = None
        for _ in range(READS_OF_SILENT_AGENTS):
            agent = await core.records.read(key, AgentRecord)
            if agent is None:
                return None
            agent = replace(agent, record=with_bounded_interval(agent.record, core.settings))
            latest = agent if latest is None or agent.updated > latest.updated else latest
            if agent.record.state != AgentState.LIVE or not is_silent(latest, core.now()):
                break
        return latest

    keys = [row.key for row in await core.store.list(AgentKeys.area) if AgentKeys.parse(row.key)]
    return [agent for agent in await map_noting_problems(keys, read, problems) if agent is not None]


def is_silent(agent: Stored[AgentRecord], now: float) -> bool:
    """Whether a record with state "live" has not been written for longer than its agent may be silent."""
    return now - agent.updated > DEATH_INTERVALS * agent.record.interval


def live_agents(agents: Iterable[Stored[AgentRecord]], now: float) -> list[AgentRecord]:
    """The agents that are alive by their records; drivers, which run no jobs, are left out."""
    live = [agent for agent in agents if agent.record.state == AgentState.LIVE and not agent.record.driver]
    return [agent.record for agent in live if not is_silent(agent, now)]


def check_replica(job: JobRecord, replica: int) -> None:
    """Raise InvalidInput if the job has no such replica."""
    if replica not in range(job.spec.replicas):
        last = job.spec.replicas - 1
        remedy = f"the replicas of {job.id} are 0 to {last}" if is_gang(job.spec) else f"{job.id} has only replica 0"
        raise InvalidInput("replica", replica, remedy)


async def job_not_found(core: Core, text: str) -> JobNotFound:
    """The error for a text that matches no job. Raises StoreUnavailable: another cluster is at the root, or none."""
    await core.store.confirm_root()
    return JobNotFound(f"there is no job {text} under {core.root}; `fray ps --all` lists those that exist")


FRESH_SECONDS = 1.0
"""Age, in seconds, from which an agent is asked for new figures; only on local files, where it hears of it at once."""

REFRESH_TIMEOUT = 1.0
"""Seconds to wait for the new figures."""


async def job_usage(core: Core, job_id: str) -> ResourceUsage | None:
    """The resource usage of the job's current or last attempt, of all replicas together; None if it is not known.

    Raises JobNotFound: there is no such job.
    """
    job = (await read_job(core, job_id)).record
    if job.exit is not None:
        return job.exit.usage
    agents = await map_concurrently(holders_of(job), lambda agent: core.records.read(AgentKeys.key(agent), AgentRecord))
    found = await map_concurrently((agent for agent in agents if agent), lambda agent: _refreshed(core, agent))
    holdings = (agent.record.holdings.get(job.id) for agent in found)
    return total_usage(holding.usage for holding in holdings if holding is not None)


async def refreshed_agents(core: Core) -> list[Stored[AgentRecord]]:
    """The records of all readable agents, with the resources that are free now."""
    return await map_concurrently(await read_agents(core, problems={}), lambda agent: _refreshed(core, agent))


async def _refreshed(core: Core, agent: Stored[AgentRecord]) -> Stored[AgentRecord]:
    """The record, or a newer one if it is old and its agent answers soon. Drivers have nothing to report."""
    is_asked = core.store.local and agent.record.state == AgentState.LIVE and not agent.record.driver
    if not is_asked or core.now() - agent.updated <= FRESH_SECONDS:
        return agent
    await post_mail(core, agent.record.id)
    until = core.clock.boottime() + REFRESH_TIMEOUT
    while core.clock.boottime() < until:
        await core.clock.sleep(core.settings.poll_interval)
        try:
            found = await core.records.reread(agent)
        except BadRecord:
            return agent
        if found is None or found.record.beat != agent.record.beat:
            return found or agent
    return agent
