"""The observer that sees every write at once: it keeps the storage's records decoded, and checks the invariants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import Object
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.index_keys import PendingKey, PlacementKey
from fray_layouts.object_keys import AgentKeys, ArchiveKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord, ReconcilerRecord, Record
from fray_layouts.spec import is_gang
from fray_layouts.work_keys import InboxKeys
from tests.simulation import agent_invariants, invariants, job_invariants, upkeep_invariants
from tests.simulation.loop import Participant

if TYPE_CHECKING:
    from tests.simulation.world import World

R = TypeVar("R", bound=Record)

CLOCKS_DIFFER = 2.0
"""Seconds by which a participant's estimate of the storage's time may be wrong."""


@dataclass(slots=True)
class Change:
    """One applied write: `name` is the job's or agent's id, `before` and `after` are decoded."""

    name: str
    before: Any
    after: Any
    raw_before: dict[str, Any]
    raw_after: dict[str, Any]
    sender: Participant


class Watching:
    """The contents of the storage, and their past.

    Attributes:
        jobs, agents: decoded, by id.
        entries: attempts that have an entry in the index, by job.
        landed: when each agent's last beats landed, with the interval that they promise.
        gone: when a name was deleted.
        lost: since when only the repair can find a pending job.
        deaths: attempts in a row that ended with their agent's death, by job.
        born: when a job's record was created. stopped: when a stop request was written into it.
        passed, repaired: when the last pass, and the last repair, ended.
        unlisted: since when a running job has not been in the memory of its working holder.
        attempt_since: since when each attempt is the one in its job's record.
        archived: jobs whose records have left `jobs/` for the archive.
        placed: owners that have an entry in the index of placements.
        made_of, admitted, drop_left: jobs by the (key, version) of their drop; those admitted; when a version left.
        parents_named: the parent that each version of a drop names; None if it is no spec.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: dict[str, JobRecord] = {}
        self.agents: dict[str, AgentRecord] = {}
        self.entries: dict[str, list[int]] = {}
        self.landed: dict[str, tuple[float, float]] = {}
        self.gone: dict[str, float] = {}
        self.results: dict[str, int] = {}
        self.lost: dict[str, float] = {}
        self.deaths: dict[str, int] = {}
        self.born: dict[str, float] = {}
        self.stopped: dict[str, float] = {}
        self.attempt_since: dict[tuple[str, int], float] = {}
        self.placed: set[str] = set()
        self.made_of: dict[tuple[str, str], list[str]] = {}
        self.admitted: dict[tuple[str, str, float], str] = {}
        self.drop_left: dict[tuple[str, str], float] = {}
        self.parents_named: dict[tuple[str, str], str | None] = {}
        self.repaired_at = 0.0
        self.archived: set[str] = set()
        self.passed = 0.0
        self.repaired = 0.0
        self.unlisted: dict[str, float] = {}
        self._progress = 0
        self._holder = ""
        self._raw: dict[str, dict[str, Any]] = {}

    def on_write(self, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
        """Note one change, and check every invariant that it could break."""
        now, strangers = self.world.loop.now, self.world.strangers
        if after is None:
            self.gone[key] = now
        if strangers.is_stranger(key) and not key.startswith("pending/"):
            self._odd(key, before, after, sender)
            strangers.wrote(key, after, sender)
            return
        strangers.wrote(key, after, sender)
        if (job := JobKeys.parse(key)) and key.startswith(JobKeys.area):
            self._job_or_move(job, key, after, sender)
        elif job := ArchiveKeys.parse(key):
            self._archive(job, after, sender)
        elif (agent := AgentKeys.parse(key)) and key.startswith(AgentKeys.area):
            self._agent(agent, key, after, sender)
        elif key.startswith("pending/"):
            self._entry(key, before, after, sender)
        elif key.startswith(PlacementKey.area):
            self._placement(key, after, sender)
        elif key == CoordinatorKeys.reconciler and after is not None:
            self._pass(msgspec.json.decode(after.data, type=ReconcilerRecord), sender)
        else:
            self.world.note(sender.name, "deletes" if after is None else "writes", key)
            upkeep_invariants.on_write(self, key, before, after, sender)
            if after is not None and InboxKeys.is_drop(key):
                self.parents_named[key, after.version] = upkeep_invariants.parent_named_by(after)
            if before is not None and InboxKeys.is_drop(key):
                self._drop_left(key, before, after, sender)

    def _odd(self, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
        """Note that the object under this name is malformed, so nothing relies on it."""
        self.world.note(sender.name, "deletes" if after is None else "writes", f"odd {key!r:.80}")
        self._raw.pop(key, None)
        if key.startswith(JobKeys.area):
            self.jobs.pop(JobKeys.parse(key) or "", None)
        elif (job := ArchiveKeys.parse(key)) and job in self.archived:
            self.jobs.pop(job, None)
        elif (agent := AgentKeys.parse(key)) and agent in self.world.agents:
            self._odd_agent(agent, after, sender)
        elif before is not None and InboxKeys.is_drop(key):
            self._drop_left(key, before, after, sender)

    def _odd_agent(self, agent: str, after: Object | None, sender: Participant) -> None:
        """Use an overwritten record of an agent as far as it can be read, because the agent may continue from it."""
        record = sound(AgentRecord, after)
        if record is None or record.id != agent:
            self.agents.pop(agent, None)
            return
        self.agents[agent] = record
        if self.world.is_process_of(sender, agent):
            self.landed[agent] = (self.world.loop.now, record.interval)

    def _drop_left(self, key: str, before: Object, after: Object | None, sender: Participant) -> None:
        self.drop_left[key, before.version] = self.world.loop.now
        if after is None:
            invariants.a_drop_is_dealt_with_before_it_goes(self, key, before, sender)

    def _job_or_move(self, job: str, key: str, after: Object | None, sender: Participant) -> None:
        """Note a change under `jobs/`. A job that is archived may appear there unadmitted, until that is noticed."""
        is_archived = ArchiveKeys.key(job) in self.world.storage.contents.objects
        record = sound(JobRecord, after)
        if is_archived and after is None:
            self.world.note(sender.name, "archives", f"job {job}")
            if job not in self.archived:
                job_invariants.a_parent_moves_after_its_children(self, job)
            self.archived.add(job)
        elif job not in self.archived or record is None or record.status != Status.UNADMITTED:
            self._job(job, key, after, sender)

    def _archive(self, job: str, after: Object | None, sender: Participant) -> None:
        self.world.note(sender.name, "deletes" if after is None else "writes", f"archived job {job}")
        if job in self.world.strangers.harmed or self.world.strangers.is_stranger(JobKeys.key(job)):
            return
        if after is not None:
            record = sound(JobRecord, after)
            job_invariants.what_is_archived_has_ended_so(self, job, record)
            if record is not None and job in self.archived:
                self.jobs[job] = record
            return
        key = JobKeys.key(job)
        if key not in self.world.storage.contents.objects:
            self.gone[key] = self.world.loop.now
            self._job(job, key, None, sender)
            self.archived.discard(job)

    def _job(self, job: str, key: str, after: Object | None, sender: Participant) -> None:
        record = msgspec.json.decode(after.data, type=JobRecord) if after else None
        change = self._change(job, key, self.jobs.get(job), record, after, sender)
        self.world.note(sender.name, f"job {job}", invariants.told(record))
        if record is None:
            self.jobs.pop(job, None)
        else:
            self.jobs[job] = record
            self.attempt_since.setdefault((job, record.attempt), self.world.loop.now)
            if change.before is None:
                self._born(record)
            if record.stop is None:
                self.stopped.pop(job, None)  # a stranger restored a record from before the request
            elif job not in self.stopped:
                self.stopped[job] = self.world.loop.now
                self.world.stop_landed(sender)
        if job not in self.world.strangers.harmed:
            kind = change.after or change.before
            of_kind = job_invariants.OF_GANGS if is_gang(kind.spec) else job_invariants.OF_JOBS
            for check in [*of_kind, *upkeep_invariants.OF_JOBS]:
                check(self, change)

    def _born(self, job: JobRecord) -> None:
        if job.id in self.born:
            self._born_again(job.id)
        self.born[job.id] = self.world.loop.now
        if job.inbox is not None:
            self.made_of.setdefault((job.inbox.key, job.inbox.version), []).append(job.id)

    def _born_again(self, job: str) -> None:
        """Forget the former job when its id, chosen by the submitter, is used again after its removal."""
        for known in (self.results, self.deaths, self.stopped, self.lost):
            known.pop(job, None)
        self.attempt_since = {which: since for which, since in self.attempt_since.items() if which[0] != job}
        self.world.effects.forget(job)

    def _agent(self, agent: str, key: str, after: Object | None, sender: Participant) -> None:
        record = msgspec.json.decode(after.data, type=AgentRecord) if after else None
        change = self._change(agent, key, self.agents.get(agent), record, after, sender)
        self.world.note(sender.name, f"agent {agent}", invariants.told_agent(record))
        if record is None:
            self.agents.pop(agent, None)
        else:
            self.agents[agent] = record
        if agent not in self.world.strangers.harmed:
            for check in agent_invariants.OF_AGENTS:
                check(self, change)
        if record is not None and (change.before is None or record.beat > change.before.beat):
            self.landed[agent] = (self.world.loop.now, record.interval)

    def _entry(self, key: str, before: Object | None, after: Object | None, sender: Participant) -> None:
        self.world.note(sender.name, "deletes" if after is None else "writes", key)
        entry = PendingKey.parse(key)
        if entry is None:
            return
        attempts = self.entries.setdefault(entry.job, [])
        if after is None and entry.attempt in attempts:
            attempts.remove(entry.attempt)
            invariants.reachable(self, entry.job, "its index entry was deleted")
        elif after is not None and before is None:
            attempts.append(entry.attempt)
            self.lost.pop(entry.job, None)

    def _placement(self, key: str, after: Object | None, sender: Participant) -> None:
        self.world.note(sender.name, "deletes" if after is None else "writes", key)
        entry = PlacementKey.parse(key)
        if entry is not None and after is not None:
            self.placed.add(entry.owner)
            self.lost.pop(entry.owner, None)
        elif entry is not None:
            self.placed.discard(entry.owner)
            invariants.reachable(self, entry.owner, "its entry among the placements was deleted")

    def _pass(self, record: ReconcilerRecord, sender: Participant) -> None:
        self.world.note(sender.name, "pass", f"progress={record.progress} holder={record.holder}")
        if record.progress != self._progress:
            self._progress, self.passed = record.progress, self.world.loop.now
        if record.holder != self._holder:
            invariants.a_working_holder_keeps_the_pass(self, self._holder, record.holder)
            self._holder = record.holder
        if record.repaired_at > self.repaired_at:
            self.repaired_at, self.repaired = record.repaired_at, self.world.loop.now
            began = record.repaired_at - self.world.epoch - CLOCKS_DIFFER
            invariants.repair_found_all(self, began, record.problems | self.world.problems_of(record.holder))

    def note_unlisted(self) -> None:
        """Note the running jobs that are not in the memory of their working holders."""
        running = [(job, job.lease.agent) for job in self.jobs.values() if job.status == Status.RUNNING and job.lease]
        works, holds = self.world.works, self.world.holds_in_memory
        odd = [
            job.id
            for job, holder in running
            if holder in self.world.agents
            and not self.world.strangers.excuses(job)
            and works(holder)
            and not holds(holder, job.id, (job.attempt,))
        ]
        self.unlisted = {job: self.unlisted.get(job, self.world.loop.now) for job in odd}

    def _change(
        self, name: str, key: str, before: Any, record: Any, after: Object | None, sender: Participant
    ) -> Change:
        raw_before = self._raw.pop(key, {})
        raw_after = msgspec.json.decode(after.data) if after else {}
        if after:
            self._raw[key] = raw_after
        return Change(name, before, record, raw_before, raw_after, sender)


def sound(kind: type[R], lies: Object | None) -> R | None:
    """The stored record; None if there is none."""
    try:
        return codec.decode(lies.data, kind).record if lies is not None else None
    except Malformed:
        return None
