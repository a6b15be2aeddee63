"""A snapshot of everything under a root, to be judged by plain functions."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from fray_coordinator.concurrency import decide_each, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, MisplacedRecord, StoreError, describe_error, is_outage
from fray_coordinator.fsck.report import AREAS, TOP_LEVEL, Area, DroppedFile, NameOnly
from fray_coordinator.protocol.heartbeat import paced_interval, with_bounded_interval
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS
from fray_coordinator.reconcile.reconciler import MAX_LISTED_PER_SECOND
from fray_coordinator.store.interface import Listed, Object
from fray_coordinator.store.paging import list_pages
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, ArchiveKeys, AsideKeys, CoordinatorKeys, EndpointKey, JobKeys
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
"""Repair intervals until a lost step is surely repaired: a repair that runs now may have read that place before
the loss."""


ROOT_LISTING_PAGE = 100
"""Keys per page of the listing of the root's top level, which has a dozen folders."""


class Judging:
    """A step of a check: an exception in it is noted under the key of the object that it judges, and the check goes on.

    One context serves all steps, because they are many; steps may be within steps.
    failed: by key, the errors that nobody has reported yet.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.failed: dict[str, str] = {}

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        key = self.keys.pop()
        if not isinstance(error, Exception):
            return False
        self.failed[key] = describe_error(error)
        return True


@dataclass(slots=True)
class Snapshot:
    """Everything under a root, as it was read.

    Attributes:
        now: time on the storage's clock when the snapshot was started.
        retried: seconds for which one request may be retried.
        keys: by area, the keys in Fray's own format.
        strays: all other keys there.
        foreign: names directly under the root that are not Fray's; a folder's name ends in "/".
        unlisted: by area, why its objects are not known; "/" stands for other objects directly under the root.
        drops: by key, the files in the inbox.
        stored: by key, every record that was read.
        jobs, agents, reservations: by id.
        unreadable: by key, the reason.
        misplaced: by key, the key under which the record there belongs.
        set_aside: the keys of objects that an earlier repair has moved, and that may be moved back.
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
    set_aside: frozenset[str] = frozenset()
    _judging: Judging = field(default_factory=Judging)

    def judging(self, key: str) -> Judging:
        """The context in which a check judges the object under `key`; an exception there ends nothing else."""
        self._judging.keys.append(key)
        return self._judging

    @property
    def judged_all(self) -> bool:
        """Whether this check could judge all its objects so far."""
        return not self._judging.failed

    def failed(self) -> dict[str, str]:
        """By key, why checks could not judge objects; each is returned once."""
        failed, self._judging.failed = self._judging.failed, {}
        return failed

    @property
    def endpoints(self) -> list[Stored[EndpointRecord]]:
        return [self.stored[key] for key in self.keys[EndpointKey.area] if key in self.stored]

    @property
    def reconciler(self) -> Stored[ReconcilerRecord] | None:
        """The reconciler's record, written at the end of each pass."""
        return self.stored.get(CoordinatorKeys.reconciler)

    def reconciler_runs(self) -> bool:
        """Whether an agent that started long ago runs the reconciler without interruption."""
        reconciler = self.reconciler
        holder = self.agents.get(reconciler.record.holder) if reconciler is not None else None
        if reconciler is None or holder is None:
            return False
        fresh = self.now - reconciler.updated <= LEASE_INTERVALS * self.settings.pass_interval
        return fresh and holder.state == AgentState.LIVE and self.now - holder.started_at > self.patience

    @property
    def patience(self) -> float:
        """Seconds after which a step that others should have taken was lost, and its repair was lost too."""
        repair = paced_interval(
            self.settings.repair_interval, len(self.keys.get(JobKeys.area, ())), MAX_LISTED_PER_SECOND
        )
        return max(self.retried, MAX_REPAIR_INTERVALS * repair)

    def is_doubtful(self, key: str) -> bool:
        """Whether the content of this key's record is unknown, so that nothing may be concluded from it."""
        misplaced = key in self.misplaced or key in self.misplaced.values()
        return misplaced or key in self.unreadable or (key in self.set_aside and key not in self.stored)

    def has_job(self, job: str) -> bool:
        """Whether the job has a record, even a doubtful one."""
        return job in self.jobs or self.is_doubtful(JobKeys.key(job)) or self.is_doubtful(ArchiveKeys.key(job))

    def is_settled(self, *keys: str) -> bool:
        """Whether the last change of these records is so old that all its consequences must have happened."""
        changes = [self.stored[key].updated for key in keys if key in self.stored]
        return self.now - max(changes, default=0.0) > self.patience

    def outlasted(self, agent: AgentRecord, key: str, seconds: float = 0.0) -> bool:
        """Whether the agent made a heartbeat more than `patience` and `seconds` after the last change of this record.

        If the agent has mail, the last write of its record may have been the mail's.
        """
        beat_at = 0.0 if agent.mail else self.stored[AgentKeys.key(agent.id)].updated
        return beat_at - self.stored[key].updated > self.patience + seconds

    def versions(self, *keys: str) -> tuple[str, ...]:
        """The versions of the records under these keys; "" for an absent one."""
        return tuple(self.stored[key].version if key in self.stored else "" for key in keys)

    def add(self, key: str, stored: Stored[Any]) -> None:
        """Add a record that was read under `key`."""
        self.stored[key] = stored
        if isinstance(stored.record, JobRecord):
            self.jobs.setdefault(stored.record.id, stored.record)  # of two, the one under jobs/ is read first
        elif isinstance(stored.record, AgentRecord):
            self.agents[stored.record.id] = with_bounded_interval(stored.record, self.settings)
        elif isinstance(stored.record, ReservationRecord):
            self.reservations[stored.record.id] = stored.record


async def take_snapshot(core: Core, before: Snapshot | None = None) -> Snapshot:
    """Read everything, in the order of `AREAS`; of jobs, agents and endpoints only what changed since `before`.

    Raises StoreUnavailable: the store is unreachable. If a single area cannot be listed, that is only noted.
    """
    seen = Snapshot(core.settings, core.now(), core.store.patience)
    known = before.stored if before is not None else {}
    with _noted(seen, "/"):
        seen.foreign = await _foreign_names(core)
    for area in AREAS:
        with _noted(seen, area.prefix):
            await _read_area(core, seen, area, known)
    seen.set_aside = frozenset(filter(None, map(AsideKeys.parse, seen.keys.get(AsideKeys.area, ()))))
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
    kinds = decide_each(rows, lambda row: (row, area.kind(row.key)), seen.unreadable, lambda row: row.key)
    seen.strays += [row.key for row, kind in kinds if kind is None]
    named = [row for row, kind in kinds if kind is not None]
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
    """The names directly under the root that are not Fray's.

    The contents of folders are not listed, except keys that sort after "~"; Fray has hardly any of these.
    """
    pages = list_pages(core.store, "", ROOT_LISTING_PAGE, next_after=_skip_folder)
    tops = [_top_level(row.key) async for page in pages for row in page]
    return list(dict.fromkeys(top for top in tops if top not in TOP_LEVEL))


def _skip_folder(key: str) -> str:
    top = _top_level(key)
    return max(key, f"{top}~" if top.endswith("/") else "")


def _top_level(key: str) -> str:
    first, slash, _ = key.partition("/")
    return first + slash
