"""Checking a cluster for what does not fit together, and repairing it with the services that agents use themselves.

The check takes one picture of everything and decides by the same functions as the services; on a live cluster a
trouble may be work in progress. Data is listed before the records it belongs to, so that what is new is never taken for
left over, and what belongs to a record that cannot be read is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fray_coordinator.admission import Admission
from fray_coordinator.core import Core, each, each_sound
from fray_coordinator.protocol.cascade import Verdict, verdict
from fray_coordinator.protocol.death import needs_burial
from fray_coordinator.protocol.index import Care, care_for
from fray_coordinator.protocol.retention import blobs_since, unneeded
from fray_coordinator.protocol.schedule import entry_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.repair import Repair
from fray_coordinator.watch import Watch
from fray_layouts.names import Agents, Blobs, Child, Jobs, Pending
from fray_layouts.records import AgentRecord, JobRecord

BY_REPAIR = "`fray fsck --repair` puts it right, and so does any live agent soon"
BY_SWEEP = "`fray fsck --repair` removes it"
BY_HAND = "look at it, and remove it if nobody needs it"
UNADMITTED_PATIENCE = 60.0
"""Seconds that an admission may take before its record counts as left over."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that does not fit. key: the object; what, remedy: for people."""

    key: str
    what: str
    remedy: str


@dataclass(slots=True)
class Picture:
    """Everything under a root, as it was read."""

    work: list[str] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    job_keys: list[str] = field(default_factory=list)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    agents: dict[str, AgentRecord] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def has_job(self, job: str) -> bool:
        """Whether there is a record of it, readable or not."""
        return job in self.jobs or Jobs.key(job) in self.unreadable

    def is_readable(self, job: str) -> bool:
        return Jobs.key(job) not in self.unreadable


async def check(core: Core) -> list[Trouble]:
    """What does not fit together now."""
    picture = await take_picture(core)
    checks = (_records, _pending, _entries, _running, _families, _unadmitted, _dead_agents, _data)
    return [trouble for look in checks for trouble in look(core, picture)]


async def repair(core: Core) -> None:
    """Bury the dead, repair indexes, families and the inbox, and remove data without a record.

    It does not declare anybody dead: that takes longer than one look.
    """
    watch = Watch(core)
    await watch.look({})
    await Repair(core, Admission(core)).run(watch.live())
    picture = await take_picture(core)
    leftover = [*_data(core, picture), *_leftover_children(core, picture)]
    await each([trouble.key for trouble in leftover], core.store.delete)


async def take_picture(core: Core) -> Picture:
    """Read everything; data before records, indexes before what they point at."""
    seen = Picture()
    for prefix, keys in (("work/", seen.work), (Blobs.prefix, seen.blobs), ("pending/", seen.entries)):
        keys += [row.key for row in await core.store.list(prefix)]
    seen.children += [row.key for row in await core.store.list("children/")]
    agent_keys = [row.key for row in await core.store.list(Agents.prefix)]
    seen.job_keys += [row.key for row in await core.store.list(Jobs.prefix)]
    jobs = await each_sound(seen.job_keys, lambda key: core.records.read(key, JobRecord), seen.unreadable)
    agents = await each_sound(agent_keys, lambda key: core.records.read(key, AgentRecord), seen.unreadable)
    seen.jobs = {job.record.id: job.record for job in jobs if job}
    seen.agents = {agent.record.id: agent.record for agent in agents if agent}
    return seen


def _records(core: Core, seen: Picture) -> Iterator[Trouble]:
    for key, problem in seen.unreadable.items():
        yield Trouble(key, f"it cannot be read ({problem})", BY_HAND)
    strays = [
        *(key for key in seen.job_keys if Jobs.parse(key) is None),
        *(key for key in seen.entries if Pending.parse(key) is None),
        *(key for key in seen.children if Child.parse(key) is None),
    ]
    for key in strays:
        yield Trouble(key, "its name is not one that Fray gives to what lies here", BY_HAND)


def _pending(core: Core, seen: Picture) -> Iterator[Trouble]:
    entries = set(seen.entries)
    for job in seen.jobs.values():
        if job.status == Status.PENDING and entry_of(job).key() not in entries:
            yield Trouble(Jobs.key(job.id), "it waits, but has no entry in the index, so no agent finds it", BY_REPAIR)


_CARE = {
    Care.DELETE: "the index has an entry that nobody needs any more",
    Care.RENEW: "the index has the entry of an earlier attempt",
}


def _entries(core: Core, seen: Picture) -> Iterator[Trouble]:
    for key in seen.entries:
        entry = Pending.parse(key)
        if entry is None or not seen.is_readable(entry.job):
            continue
        job = seen.jobs.get(entry.job)
        holder = seen.agents.get(job.lease.agent) if job and job.lease else None
        care = care_for(entry, job, holder, core.now(), core.settings)
        if care in _CARE:
            yield Trouble(key, _CARE[care], BY_REPAIR)


def _running(core: Core, seen: Picture) -> Iterator[Trouble]:
    for job in seen.jobs.values():
        if job.status != Status.RUNNING or job.lease is None:
            continue
        holder = seen.agents.get(job.lease.agent)
        if holder is None or holder.state != "live":
            state = holder.state if holder else "unknown"
            yield Trouble(Jobs.key(job.id), f"it runs under agent {job.lease.agent}, which is {state}", BY_REPAIR)


def _families(core: Core, seen: Picture) -> Iterator[Trouble]:
    for job in seen.jobs.values():
        if is_terminal(job) or job.parent is None or job.stop is not None or not seen.is_readable(job.parent.job):
            continue
        if verdict(job, seen.jobs.get(job.parent.job), core.now(), core.settings.repair_interval) is Verdict.STOP:
            what = f"its parent {job.parent.job} no longer runs attempt {job.parent.attempt}, but it goes on"
            yield Trouble(Jobs.key(job.id), what, BY_REPAIR)
    yield from _leftover_children(core, seen)


def _leftover_children(core: Core, seen: Picture) -> Iterator[Trouble]:
    for key in seen.children:
        entry = Child.parse(key)
        if entry is not None and not seen.has_job(entry.parent) and not seen.has_job(entry.child):
            yield Trouble(key, "neither this parent nor this child has a record", BY_REPAIR)


def _unadmitted(core: Core, seen: Picture) -> Iterator[Trouble]:
    for job in seen.jobs.values():
        if job.status == Status.UNADMITTED and core.now() - job.submitted_at > UNADMITTED_PATIENCE:
            yield Trouble(Jobs.key(job.id), "it was read from the inbox, but neither admitted nor withdrawn", BY_REPAIR)


def _dead_agents(core: Core, seen: Picture) -> Iterator[Trouble]:
    for agent in seen.agents.values():
        if needs_burial(agent):
            what = f"it is {agent.state}, and its {len(agent.holdings)} jobs have not all been put back"
            yield Trouble(Agents.key(agent.id), what, BY_REPAIR)


def _data(core: Core, seen: Picture) -> Iterator[Trouble]:
    """Data that belongs to no record. A job's record exists before its data; a blob exists before its job's record."""
    for key in seen.work:
        if not seen.has_job(key.split("/")[1]):
            yield Trouble(key, "it belongs to a job that has no record", BY_SWEEP)
    used = {job.spec.entrypoint.callable.blob for job in seen.jobs.values() if job.spec.entrypoint.callable}
    blobs = [] if seen.unreadable else seen.blobs
    for key in unneeded(blobs, used, blobs_since(core.now(), core.settings)):
        yield Trouble(key, "no job needs it", BY_SWEEP)
