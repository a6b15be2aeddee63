"""Requeues the jobs of lost holders: dead agents, agents without a readable record, and agents that dropped them.

Every job that a dead agent's record lists is requeued; only then the record is marked reaped.

Agents that hold jobs, by the jobs' records, but whose own records cannot be read:

**Invariant.** The jobs that such an agent holds end with it, or are requeued.

**Unsafe sequence.** A job is requeued because its holder's record is garbage, while the holder still runs it. Or the
record is repaired, and the holder, which had only missed a beat, continues with the new record.

**Why this cannot happen.** An agent that cannot read its own record cannot beat, so its trust runs out and it ends.
Only after that is its record replaced by a dead agent's, on condition of the version that has been there since. After
that replacement no beat of the agent can be applied.

Running jobs that their live holders did not list are remembered from one repair to the next.
`protocol.failure_detection` decides when such a job counts as dropped.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs import commit, pending_index
from fray_coordinator.protocol.failure_detection import (
    MissedJob,
    declare_dead,
    is_dropped,
    is_lost,
    lost_agent,
    needs_reaping,
)
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import Object
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord
from fray_layouts.spec import is_gang
from fray_layouts.states import AgentState


async def declare_agent_dead(
    core: Core, agent: Stored[AgentRecord], patience: float | None = None
) -> Stored[AgentRecord] | None:
    """Declare the agent dead if its beat is still the observed one; None if the agent lives after all.

    patience: as in `Store.put`.
    """
    beat = agent.record.beat
    update = await core.records.change(agent.key, AgentRecord, lambda now: declare_dead(now, beat), agent, patience)
    stored = update.stored
    return stored if stored is not None and stored.record.state == AgentState.DEAD else None


async def reap(core: Core, agent: Stored[AgentRecord]) -> None:
    """Requeue the jobs that the dead agent held, and mark it reaped once job and index agree for all of them.

    Only jobs whose record names the agent of this key are requeued: the record might be a copy of another agent's.
    Raises BadRecord: some of the jobs cannot be read; the others were requeued.
    """
    dead = AgentKeys.parse(agent.key)
    if dead is None or not needs_reaping(agent.record):
        return
    problems: dict[str, str] = {}
    await map_noting_problems(agent.record.holdings, lambda job: _requeue_job(core, job, dead), problems)
    if problems:
        raise BadRecord(_summarize(problems))
    await core.records.change(
        agent.key, AgentRecord, lambda now: replace(now, reaped=True) if needs_reaping(now) else None, agent
    )


async def _requeue_job(core: Core, job_id: str, dead: str) -> None:
    """Requeue one listed job if the dead agent still holds it, and make the index agree.

    A gang goes on without a member that has done its part. The scheduler of placements replaces the agent in gangs that
    are gathering, and in reservations.
    """
    job = await core.records.read(JobKeys.key(job_id), JobRecord)
    if job is not None and is_gang(job.record.spec):
        await commit.end_without(core, job, dead)
        return
    now = await pending_index.requeue_lost_job(core, job, dead) if job is not None else None
    if now is not None and now.record.status == Status.PENDING:
        await pending_index.create_entry(core, now.record)


def _summarize(problems: dict[str, str]) -> str:
    first, *more = problems.values()
    return f"{first}; and {len(more)} more of its jobs" if more else first


@dataclass(slots=True)
class UnreadableHolders:
    """Remembers unreadable holders: by key, the present version, and the boot time since when it is there."""

    core: Core
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    _before: dict[str, tuple[str, float]] = field(default_factory=dict)

    def start_run(self) -> None:
        """Start a run of the repair; forget holders that the previous run did not meet."""
        self._before, self._seen = self._seen, {}

    async def check(self, agent: str) -> None:
        """Read the agent's record again, and write the agent off if the record has not changed for long enough."""
        key = AgentKeys.key(agent)
        present, now = await self.core.store.get(key, one_of_many=True), self.core.clock.boottime()
        if present is None:
            return
        version, since = self._before.get(key, ("", now))
        self._seen[key] = first = (present.version, since if version == present.version else now)
        if is_lost(now - first[1], self.core.settings):
            await write_off(self.core, agent, present)


async def write_off(core: Core, agent: str, present: Object) -> None:
    """Replace the agent's unreadable record by that of a dead agent, unless it has changed."""
    await core.records.put(AgentKeys.key(agent), lost_agent(agent), present.version)


@dataclass(slots=True)
class MissedJobs:
    """The sightings of this repair and of the previous one, by the ids of job and holder."""

    _missed: dict[tuple[str, str], MissedJob] = field(default_factory=dict)
    _before: dict[tuple[str, str], MissedJob] = field(default_factory=dict)

    def start_run(self) -> None:
        """Start a repair."""
        self._before, self._missed = self._missed, {}

    def is_dropped(self, job: str, version: str, holder: AgentRecord) -> bool:
        """Whether the holder, read after this version of the job, has dropped it; if not yet, remember the sighting."""
        place, last = (job, holder.id), MissedJob(version, holder.beat)
        first = self._before.get(place, last)
        if is_dropped(first, last):
            return True
        self._missed[place] = first if first.version == version else last
        return False
