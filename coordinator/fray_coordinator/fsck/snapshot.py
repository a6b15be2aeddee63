"""A snapshot of everything under a root, to be judged by plain functions."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, MisplacedRecord, StoreError, is_outage
from fray_coordinator.fsck.areas import AREAS, TOP_LEVEL, Area, DroppedFile, NameOnly
from fray_coordinator.protocol.heartbeat import paced_interval, with_bounded_interval
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS
from fray_coordinator.reconcile.reconciler import MAX_LISTED_PER_SECOND
from fray_coordinator.store.interface import Listed, Object
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, EndpointKey, JobKeys
from fray_layouts.records import (
    AgentRecord,
    ClusterSettings,
    EndpointRecord,
    JobRecord,
    ReconcilerRecord,
    ReservationRecord,
)
from fray_layouts.states import AgentState

MAX_REPAIR_INTERVALS = 2
"""Repair intervals that the repair of a lost step takes at most: the one that runs now may have looked there before."""


ROOT_LISTING_PAGE = 100
"""Names in one page of the listing of the root's top level, which has a dozen folders."""


@dataclass(slots=True)
class Snapshot:
    """Everything under a root, as it was read.

    Attributes:
        now: the storage's time when it was begun.
        retried: seconds for which one request may be repeated.
        keys: by area, the names that Fray gives.
        strays: all other names there.
        foreign: names right under the root that are none of Fray's; a folder's ends in "/".
        unlisted: by area, why its objects are not known; "/" stands for other objects right under the root.
        drops: by key, the files in the inbox.
        stored: by key, every record that was read.
        jobs, agents, reservations: by id.
        unreadable: by key, why.
        misplaced: by key, the one under which the record there belongs.
    """

    settings: ClusterSettings
    now: float
    retried: float
    keys: dict[str, list[str]] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    unlisted: dict[str, str] = field(default_factory=dict)
    drops: dict[str, Object] = field(default_factory=dict)
    stored: dict[str, Stored[Any]] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    agents: dict[str, AgentRecord] = field(default_factory=dict)
    reservations: dict[str, ReservationRecord] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    misplaced: dict[str, str] = field(default_factory=dict)

    @property
    def endpoints(self) -> list[Stored[EndpointRecord]]:
        return [self.stored[key] for key in self.keys[EndpointKey.area] if key in self.stored]

    @property
    def reconciler(self) -> Stored[ReconcilerRecord] | None:
        """The record of the coordinator's pass, written at the end of each."""
        return self.stored.get(CoordinatorKeys.lease)

    def reconciler_runs(self) -> bool:
        """Whether an agent that has lived for long makes one pass of the coordinator after the other."""
        reconciler = self.reconciler
        holder = self.agents.get(reconciler.record.holder) if reconciler is not None else None
        if reconciler is None or holder is None:
            return False
        fresh = self.now - reconciler.updated <= LEASE_INTERVALS * self.settings.pass_interval
        return fresh and holder.state == AgentState.LIVE and self.now - holder.started_at > self.patience

    @property
    def patience(self) -> float:
        """Seconds after which a step that others should have taken was lost, and its repair too."""
        repair = paced_interval(self.settings.repair_interval, len(self.jobs), MAX_LISTED_PER_SECOND)
        return max(self.retried, MAX_REPAIR_INTERVALS * repair)

    def is_doubtful(self, key: str) -> bool:
        """Whether nobody can say what the record of this name holds: nothing is concluded from it."""
        return key in self.unreadable or key in self.misplaced or key in self.misplaced.values()

    def has_job(self, job: str) -> bool:
        """Whether there is a record of it, perhaps one in doubt."""
        return job in self.jobs or self.is_doubtful(JobKeys.key(job))

    def is_settled(self, *keys: str) -> bool:
        """Whether what follows from the last change of these records has had its time."""
        changes = [self.stored[key].updated for key in keys if key in self.stored]
        return self.now - max(changes, default=0.0) > self.patience

    def outlasted(self, agent: AgentRecord, key: str, seconds: float = 0.0) -> bool:
        """Whether the agent has made a beat more than `patience` and `seconds` after the last change of this record.

        With mail in it, the last write of the agent's record may be that of the mail.
        """
        beat_at = 0.0 if agent.mail else self.stored[AgentKeys.key(agent.id)].updated
        return beat_at - self.stored[key].updated > self.patience + seconds

    def versions(self, *keys: str) -> tuple[str, ...]:
        """The versions of the records under these keys; "" for an absent one."""
        return tuple(self.stored[key].version if key in self.stored else "" for key in keys)

    def add(self, key: str, stored: Stored[Any]) -> None:
        """Take in what was read under `key`."""
        self.stored[key] = stored
        if isinstance(stored.record, JobRecord):
            self.jobs[stored.record.id] = stored.record
        elif isinstance(stored.record, AgentRecord):
            self.agents[stored.record.id] = with_bounded_interval(stored.record, self.settings)
        elif isinstance(stored.record, ReservationRecord):
            self.reservations[stored.record.id] = stored.record


async def take_snapshot(core: Core, before: Snapshot | None = None) -> Snapshot:
    """Read everything, in the order of `AREAS`; of jobs, agents and endpoints only what changed since `before`.

    Raises StoreUnavailable: the store answers nobody. An area that alone cannot be listed is noted.
    """
    seen = Snapshot(core.settings, core.now(), core.store.patience)
    known = before.stored if before is not None else {}
    with _noted(seen, "/"):
        seen.foreign = await _foreign_names(core)
    for area in AREAS:
        with _noted(seen, area.prefix):
            await _read_area(core, seen, area, known)
    return seen


@contextmanager
def _noted(seen: Snapshot, area: str) -> Iterator[None]:
    try:
        yield
    except (StoreError, BadRecord) as error:
        if is_outage(error):
            raise
        seen.unlisted[area] = str(error)


async def _read_area(core: Core, seen: Snapshot, area: Area, known: dict[str, Stored[Any]]) -> None:
    rows = await core.store.list(area.prefix, versions=area.versions)
    seen.strays += [row.key for row in rows if area.kind(row.key) is None]
    named = [row for row in rows if area.kind(row.key) is not None]
    seen.keys[area.prefix] = [row.key for row in named]
    await _read_all(core, seen, area, named, known)


async def _read_all(
    core: Core, seen: Snapshot, area: Area, rows: Iterable[Listed], known: dict[str, Stored[Any]]
) -> None:
    async def read(row: Listed) -> None:
        kind, stored = area.kind(row.key), known.get(row.key)
        assert kind is not None, "strays were left out"
        if kind is DroppedFile:
            if (found := await core.store.get(row.key)) is not None:
                seen.drops[row.key] = found
            return
        if stored is None or stored.version != row.version:
            try:
                stored = await core.records.read(row.key, kind)
            except MisplacedRecord as error:
                seen.misplaced[row.key] = error.own
                return
        if stored is not None:
            seen.add(row.key, stored)

    wanted = [row for row in rows if area.kind(row.key) is not NameOnly]
    await map_noting_problems(wanted, read, seen.unreadable, lambda row: row.key)


async def _foreign_names(core: Core) -> list[str]:
    """The names right under the root that are none of Fray's.

    What lies in a folder is not listed, but for names that sort behind "~", which Fray gives to hardly anything.
    """
    found: dict[str, None] = {}
    after = ""
    while rows := await core.store.list("", after or None, ROOT_LISTING_PAGE):
        tops = [_top_level(row.key) for row in rows]
        found |= dict.fromkeys(top for top in tops if top not in TOP_LEVEL)
        after = max(rows[-1].key, f"{tops[-1]}~" if tops[-1].endswith("/") else "")
    return list(found)


def _top_level(key: str) -> str:
    first, slash, _ = key.partition("/")
    return first + slash
