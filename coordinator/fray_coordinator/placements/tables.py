"""The agents, and the owners of placements that have not ended, as the scheduler of placements knows them."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, is_fenced, max_interval
from fray_coordinator.protocol.placements.owners import GANG, Owner
from fray_coordinator.protocol.placements.rounds import OwnerRecord, owner_of
from fray_coordinator.protocol.placements.votes import OwnerPhase, phase_of_owner
from fray_coordinator.store.interface import Object
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import AgentKeys, JobKeys, ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, ReservationRecord, Suspect
from fray_layouts.states import ReservationState


@dataclass(slots=True)
class AgentTable:
    """Reads the records of those agents that matter for a decision now.

    Attributes:
        seen: by id, the agents that have not ended, from the last read of all of them.
        suspects: by id, the agents whose heartbeat is overdue.
        problems: by key, the errors of the last reads.
    """

    core: Core
    seen: Callable[[], Mapping[str, Stored[AgentRecord]]]
    suspects: Callable[[], Mapping[str, Suspect]]
    problems: dict[str, str] = field(default_factory=dict)
    _read: dict[str, Stored[AgentRecord] | None] = field(default_factory=dict)

    def records(self) -> dict[str, AgentRecord]:
        """By id, the agents that have not ended, each as last read."""
        return {agent: stored.record for agent, stored in self._newest().items()}

    def silent(self) -> set[str]:
        """The agents whose heartbeat is overdue."""
        newest = self._newest()
        return {a for a, suspect in self.suspects().items() if a in newest and newest[a].record.beat == suspect.beat}

    def unobserved(self) -> set[str]:
        """The agents that were read here and that the last observation lacks: they have joined since, or have ended."""
        return {a for a, stored in self._read.items() if stored and not is_fenced(stored.record)} - self.seen().keys()

    async def read(self, agents: Iterable[str]) -> None:
        """Read these agents' records now."""
        known = self._newest()
        self.problems = {}

        async def read(agent: str) -> None:
            before = known.get(agent)
            if before is not None:
                self._read[agent] = await self.core.records.reread(before, one_of_many=True)
            else:
                self._read[agent] = await self.core.records.read(AgentKeys.key(agent), AgentRecord, one_of_many=True)

        await map_noting_problems(sorted(set(agents)), read, self.problems, AgentKeys.key, MAX_CONCURRENT_READS)

    async def read_changed(self) -> None:
        """Read the records of all agents that may be alive and have changed since they were last read."""
        known = self._newest()
        rows = {AgentKeys.parse(row.key): row for row in await self.core.store.list(AgentKeys.area, versions=True)}
        oldest = self.core.now() - DEATH_INTERVALS * max_interval(self.core.settings)
        changed = [
            name
            for name, row in rows.items()
            if name is not None
            and (row.version != known[name].version if name in known else (row.updated or oldest) >= oldest)
        ]
        await self.read(changed)

    def forget_all_but(self, agents: Collection[str]) -> None:
        """Forget what was read of all other agents, and their errors; the next pass reads them anyway."""
        self._read = {agent: stored for agent, stored in self._read.items() if agent in agents}
        self.problems = {key: problem for key, problem in self.problems.items() if AgentKeys.parse(key) in agents}

    def _newest(self) -> dict[str, Stored[AgentRecord]]:
        newest = dict(self.seen())
        for agent, stored in self._read.items():
            if stored is None or is_fenced(stored.record):
                newest.pop(agent, None)
            elif agent not in newest or newest[agent].record.beat <= stored.record.beat:
                newest[agent] = stored
        return newest


MAX_CONCURRENT_READS = 64
"""Owners, or members of one owner, that are read at a time; a large gang has a thousand members."""


@dataclass(slots=True)
class OwnerTable:
    """Reads the index when its bell was rung, and the records that may have changed.

    Attributes:
        known: the records by key, as last read or written; some may have ended since.
        problems: by key, the errors of the last refresh.
    """

    core: Core
    known: dict[str, Stored[OwnerRecord]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    rang: bool = False
    _bell: str | None = None
    _listed_at: float = float("-inf")

    async def refresh(self) -> bool:
        """Find new owners, and read the forming ones again, or all if the bell was rung; returns whether all were read.

        A lost ring delays this by at most a repair interval.
        """
        self.problems = {}
        now = self.core.clock.boottime()
        bell = await self._read_bell()
        self.rang = bell != self._bell
        if is_due := self.rang or now - self._listed_at >= self.core.settings.repair_interval:
            await self._list()
            self._listed_at, self._bell = now, bell  # only now, so that a failed listing is repeated
        else:
            await self.read(stored.key for stored in self.forming() if owner_of(stored.record).placement.members)
        return is_due

    def forming(self) -> list[Stored[OwnerRecord]]:
        """The owners that gather their members, in the order in which they get room."""
        found = [stored for stored in self.known.values() if phase_of_owner(stored.record) is OwnerPhase.FORMING]
        return sorted(found, key=lambda stored: owner_of(stored.record).order)

    def running(self) -> list[Stored[OwnerRecord]]:
        """The running gangs and the held reservations."""
        return [stored for stored in self.known.values() if phase_of_owner(stored.record) is OwnerPhase.STARTED]

    def reservations(self) -> list[Stored[ReservationRecord]]:
        """All reservations and groups."""
        return [found for stored in self.known.values() if (found := as_reservation(stored)) is not None]

    def held(self) -> list[Stored[ReservationRecord]]:
        """The reservations and groups that are held."""
        return [stored for stored in self.reservations() if stored.record.state == ReservationState.HELD]

    def has_moved_on(self, before: Stored[OwnerRecord]) -> bool:
        """Whether a gang has left the attempt of this earlier record, or has been asked to stop since."""
        gang, now = as_gang(before), self.known.get(before.key)
        later = as_gang(now) if now is not None else None
        if gang is None or later is None:
            return gang is not None
        stops = later.record.stop is not None and gang.record.stop is None
        return stops or later.record.attempt != gang.record.attempt or phase_of_owner(later.record) is OwnerPhase.OVER

    def owners(self) -> dict[str, Owner]:
        """By id, all owners that have not ended."""
        owners = (owner_of(s.record) for s in self.known.values() if phase_of_owner(s.record) is not OwnerPhase.OVER)
        return {owner.id: owner for owner in owners}

    def keep(self, key: str, stored: Stored[OwnerRecord] | None) -> None:
        """Store a record as just read or written; None: it is gone."""
        if stored is None:
            self.known.pop(key, None)
        else:
            self.known[key] = stored

    async def _read_bell(self) -> str | None:
        """The version of the bell; if there is no bell, the last known version."""
        answer = await self.core.store.get_if_changed(PlacementKey.bell, self._bell)
        return answer.version if isinstance(answer, Object) else self._bell

    async def _list(self) -> None:
        rows = await self.core.store.list(PlacementKey.area)
        entries = (PlacementKey.parse(row.key) for row in rows)
        keys = [record_key(entry) for entry in entries if entry is not None]
        self.known = {key: self.known[key] for key in keys if key in self.known}
        await self.read(keys)

    async def read(self, keys: Iterable[str]) -> None:
        """Read these records again, if they have changed."""

        async def read(key: str) -> None:
            known = self.known.get(key)
            if known is not None:
                stored = await self.core.records.reread(known, one_of_many=True)
            else:
                kind: type[OwnerRecord] = ReservationRecord if ReservationKeys.parse(key) else JobRecord
                stored = await self.core.records.read(key, kind, one_of_many=True)
            self.keep(key, None)
            if stored is not None:
                owner_of(stored.record)  # if it raises, the record is noted here, and no later step meets it
                self.keep(key, stored)

        await self._each(keys, read, MAX_CONCURRENT_READS)

    async def each_forming(self, act: Callable[[Stored[OwnerRecord]], Awaitable[None]]) -> None:
        """Call `act` on every forming owner, one after the other, in their order."""

        await self._act_on_each(self.forming(), act)

    async def each_held(self, act: Callable[[Stored[ReservationRecord]], Awaitable[None]]) -> None:
        """Call `act` on every held reservation, one after the other."""

        async def one(stored: Stored[OwnerRecord]) -> None:
            if (held := as_reservation(stored)) is not None:
                await act(held)

        await self._act_on_each(cast(list[Stored[OwnerRecord]], self.held()), one)

    async def _act_on_each(
        self, owners: Iterable[Stored[OwnerRecord]], act: Callable[[Stored[OwnerRecord]], Awaitable[None]]
    ) -> None:
        async def one(key: str) -> None:
            if (stored := self.known.get(key)) is not None:
                await act(stored)

        await self._each([stored.key for stored in owners], one, 1)

    async def _each(self, keys: Iterable[str], act: Callable[[str], Awaitable[None]], at_once: int) -> None:
        """Call `act` on every key; a key without a valid record is noted and dropped until the next listing."""

        async def guarded(key: str) -> None:
            try:
                await act(key)
            except BadRecord:
                self.keep(key, None)
                raise

        await map_noting_problems(list(keys), guarded, self.problems, at_once=at_once)


def record_key(entry: PlacementKey) -> str:
    """The key of the record that an entry names."""
    return JobKeys.key(entry.owner) if entry.kind == GANG else ReservationKeys.key(entry.owner)


def as_gang(stored: Stored[OwnerRecord]) -> Stored[JobRecord] | None:
    """The owner's record if it is a gang's job."""
    return cast(Stored[JobRecord], stored) if isinstance(stored.record, JobRecord) else None


def as_reservation(stored: Stored[OwnerRecord]) -> Stored[ReservationRecord] | None:
    """The owner's record if it is a reservation's or a group's."""
    return cast(Stored[ReservationRecord], stored) if isinstance(stored.record, ReservationRecord) else None
