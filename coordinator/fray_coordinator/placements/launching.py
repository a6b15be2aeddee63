"""Sends submitted jobs into reservations, and launches groups: all jobs of a group start, or none.

`protocol.placements` explains the order of the writes.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.concurrency import decide_each, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreRefused
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.lookup import find_reservation, live_agents, read_agents
from fray_coordinator.jobs.submission import Submitted, submit
from fray_coordinator.per_process import PerLoop
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.placements import launching
from fray_coordinator.protocol.placements.launching import in_private_pool
from fray_coordinator.protocol.placements.owners import RESERVATION, owner_of_reservation
from fray_coordinator.protocol.placements.reservations import goes_into, refusal
from fray_coordinator.store.interface import NotModified, Version
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import JobIds, ReservationKeys
from fray_layouts.records import JobRecord, ReservationRecord
from fray_layouts.spec import JobSpec
from fray_layouts.states import ReservationKind, ReservationState

RELIED_ON_SECONDS = 1.0
"""Seconds for which the known reservations are relied on; after that a cheap read of the bell shows changes."""


@dataclass(slots=True)
class ReservationRouter:
    """Knows the reservations that accept jobs automatically. It lists them when the placements' bell has rung."""

    _open: list[ReservationRecord] = field(default_factory=list)
    _others: set[str] = field(default_factory=set)
    _bell: Version | None = None
    _read_at: float | None = None
    _core: Core = field(init=False)
    _read: PerLoop[Sequence[ReservationRecord]] = field(init=False)

    def forget(self) -> None:
        """Read them again before the next job, because a reservation was just made or has ended."""
        self._read_at = None

    async def route(self, core: Core, specs: Sequence[JobSpec]) -> list[JobSpec]:
        """The specs; a spec that fits a reservation of its namespace is moved to the reservation's private pool.

        Raises:
            ReservationNotFound: a spec names the pool of a reservation that does not exist.
        InvalidInput: the reservation belongs to another namespace, or has ended.
        """
        return [await self._routed(core, spec) for spec in specs]

    async def _routed(self, core: Core, spec: JobSpec) -> JobSpec:
        if named := ReservationKeys.of_pool(spec.pool):
            await reservations.usable(core, named, spec.namespace)
            return spec
        self._core = core  # a fork has another one
        if self._read_at is None or core.clock.boottime() - self._read_at > RELIED_ON_SECONDS:
            self._read_at = core.clock.boottime()
            self._read = PerLoop(self._read_open)
        known = await self._read.get()  # callers that come during a read wait for its result
        problems: dict[str, str] = {}  # the reconciler names the same ones
        entered = decide_each(known, lambda record: record.id if goes_into(spec, record) else "", problems)
        first = next(filter(None, entered), "")
        return in_private_pool(spec, first) if first else spec

    async def _read_open(self) -> Sequence[ReservationRecord]:
        """The reservations that have not ended, in order of priority and submission."""
        with suppress(StoreRefused):  # without the right to read them, jobs are submitted as usual
            await self._find(self._core)
        return self._open

    async def _find(self, core: Core) -> None:
        """Find the reservations that have not ended; each group is read once. If there is no bell, there are none."""
        bell = await core.store.get_if_changed(PlacementKey.bell, self._bell)
        if bell is None or isinstance(bell, NotModified):
            return
        entries = [PlacementKey.parse(row.key) for row in await core.store.list(PlacementKey.area)]
        ids = {entry.owner for entry in entries if entry is not None and entry.kind == RESERVATION}
        self._others &= ids
        problems: dict[str, str] = {}
        found = await map_noting_problems(sorted(ids - self._others), lambda one: find_reservation(core, one), problems)
        known = [record for record in found if record is not None]
        self._others |= {record.id for record in known if record.kind != ReservationKind.RESERVATION}
        self._open = [
            record
            for record in known
            if record.kind == ReservationKind.RESERVATION and record.state != ReservationState.ENDED
        ]
        self._open.sort(key=lambda record: (-record.priority, record.submitted_at, record.id))
        self._bell = bell.version


async def outside_of_ended(core: Core, job: JobRecord) -> JobRecord:
    """The job for a retry: if its reservation accepts no more jobs, moved to the pool around the reservation."""
    pool, seen = job.spec.pool, set[str]()
    while inside := ReservationKeys.of_pool(pool):
        record = await find_reservation(core, inside) if inside not in seen else None
        seen.add(inside)  # two damaged records may name each other's pools
        if record is not None and not refusal(record, job.spec.namespace):
            break
        pool = record.pool if record is not None else "default"
    return job if pool == job.spec.pool else replace(job, spec=replace(job.spec, pool=pool))


@dataclass(frozen=True, slots=True)
class GroupWish:
    """The request for a launch group.

    Attributes:
        name: for people; also the beginning of its id.
        same_region, same_zone: all bundles in the same one; the region is ignored if no agent states its region.
        reservation: id of the reservation whose bundles the group uses; "" for none.
    """

    name: str
    same_region: bool = False
    same_zone: bool = False
    reservation: str = ""


async def launch(
    core: Core,
    specs: Sequence[JobSpec],
    wish: GroupWish,
    attempt_of_parent: int | None = None,
    ancestors: Sequence[str] = (),
) -> list[Submitted]:
    """Submit jobs that start all at once or not at all. Writes the index entry, then the jobs, then the group's record.

    Args:
        specs: checked specs of one pool and one namespace.
        attempt_of_parent, ancestors: as for `submit`.

    Raises:
        InvalidInput: they can never start together; the message says which one and what is short. Nothing was
            submitted.
        ReservationNotFound: there is no such reservation.
        ParentNotRunning: as `submit`.
    """
    pool = launching.common_pool(specs)
    around = await reservations.usable(core, wish.reservation, specs[0].namespace) if wish.reservation else None
    ids = [JobIds.fresh(spec.name, core.now(), core.rng.token()) for spec in specs]
    record = ReservationRecord(
        id=JobIds.fresh(wish.name, core.now(), core.rng.token()),
        kind=ReservationKind.GROUP,
        name=wish.name,
        namespace=specs[0].namespace,
        pool=ReservationKeys.pool(around.id) if around is not None else pool,
        priority=max(spec.priority for spec in specs),
        submitted_at=core.now(),
        parts=[launching.bundles_of_job(spec, job) for spec, job in zip(specs, ids, strict=True)],
        low=sum(spec.replicas for spec in specs),
    )
    record.same = await _checked_place(core, record, wish, around.pool if around is not None else pool)
    await notifications.enter(core, record)
    inside = [launching.in_private_pool(spec, record.id) for spec in specs]
    submitted = await submit(core, inside, attempt_of_parent, ids, ancestors)
    record.ancestors = submitted[0].job.ancestors
    await reservations.publish(core, record)
    return submitted


async def _checked_place(core: Core, record: ReservationRecord, wish: GroupWish, agents_pool: str) -> str:
    """The `same` of the group's record. Raises InvalidInput if the group can never start on the present agents."""
    agents = live_agents(await read_agents(core, {}), core.now())
    agents = [agent for agent in agents if agent.pool == agents_pool]
    launching.check_can_ever_fit(owner_of_reservation(record), agents)
    if wish.same_zone and not any(agent.zone for agent in agents):
        raise InvalidInput("group.same_zone", True, "no live agent states its zone; start agents with --zone")
    if wish.same_zone:
        return "zone"
    return "region" if wish.same_region and any(agent.region for agent in agents) else ""
