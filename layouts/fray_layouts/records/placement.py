"""Records of placements, which assign an owner's bundles to agents. Owners are gangs and reservations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from fray_layouts.bounds import (
    MAX_BUNDLES,
    MAX_PORT,
    SAME_PATTERN,
    Count,
    FamilyDigits,
    Id,
    Interval,
    Key,
    MaybeId,
    MaybeJobId,
    MaybeName,
    Name,
    Pool,
    Priority,
    Time,
)
from fray_layouts.errors import InvalidInput
from fray_layouts.records.base import Record
from fray_layouts.spec import GangSpec
from fray_layouts.states import ReservationState

MAX_ANCESTORS = 16
"""Ancestors in a record. The topmost stands for the family; an owner of a placement gets no room that one of the others
uses. Nobody has met jobs that nest more deeply."""

Ancestors = Annotated[list[Id], msgspec.Meta(max_length=MAX_ANCESTORS)]
"""Ids of the jobs above a job or a reservation, the topmost first."""


def ancestors_of_child(ancestors: Sequence[str], parent: str) -> list[str]:
    """The ancestors of a child of `parent`, which has these ancestors."""
    above = [*ancestors, parent]
    return above if len(above) <= MAX_ANCESTORS else [above[0], *above[1 - MAX_ANCESTORS :]]


def check_ancestors(own: str, ancestors: Sequence[str]) -> None:
    """Raise InvalidInput, which names `ancestors`, if a job or a reservation is above itself, or a job above twice."""
    if own in ancestors:
        raise InvalidInput("ancestors", own, "nothing is above itself; leave it out")
    if len(set(ancestors)) < len(ancestors):
        raise InvalidInput("ancestors", ancestors, "name each job once")


def root_of(own: str, ancestors: Sequence[str]) -> str:
    """The id of the topmost job above a job or a reservation, which stands for its family; `own` if there is none."""
    return ancestors[0] if ancestors else own


class SliceMember(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The place of a host in a TPU slice.

    Attributes:
        id: id of the slice instance; a slice that is made again under the same name has another id.
        type: such as "v5litepod-16".
        index: number of this host in the slice, from 0.
        hosts: number of hosts of the slice.
    """

    id: Id
    type: Name
    index: Count = 0
    hosts: Count = 1

    def check(self, field: str) -> None:
        """Raise InvalidInput, which names a part of `field`, if there is no such place in the slice."""
        if self.index >= self.hosts:
            raise InvalidInput(f"{field}.index", self.index, f"the slice has {self.hosts} hosts, counted from 0")


class PlacementMember(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An agent that has bundles of an owner, or is to have them.

    Attributes:
        agent: its id; `host`: name of its host, for people.
        address: host name or address under which the other members reach it.
        bundles: numbers of the owner's bundles, which for a gang are its replicas.
        slice: the host's place in a slice, if the bundles are whole slices.
        ports: numbers of the ports that the agent holds for all members, by port name, as its vote listed them.
    """

    agent: Id
    host: str = ""
    address: str = ""
    bundles: list[Count] = []
    slice: SliceMember | None = None
    ports: dict[str, Count] = {}


MAX_FAMILIES_FIRST = 256
"""Families in a placement, those that go first and those that did. Each costs its owner some minutes."""


class FamilyFirst(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A family that goes before an owner of a placement, because the owner waits for the end of one of its jobs.

    Attributes:
        family: its digits, as in the pending index.
        at: when it was let in, on the storage's clock.
        again: None while it goes first; afterwards, the time from which it may be let in again.
    """

    family: FamilyDigits
    at: Time
    again: Time | None = None


class Placement(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The members to which an owner's bundles are assigned.

    Attributes:
        round: raised by each change of members; never reset, not even by a new attempt. A vote names it.
        members: the agents, with the bundles assigned to each.
        until: time on the storage's clock until which later single jobs may use the members' room; None: they may not.
        moves: how often in this attempt the members were changed for a better set.
        refused: agents that this attempt leaves out.
        place: time on the storage's clock when this attempt was first given members; None: it was not yet.
        first: families of jobs that go before the owner, or did so in this attempt. No member votes, and the owner does
            not start, while one goes first.
        limit_turns: how often one was let in because the owner had waited for longer than the pool's `hold_limit`.
    """

    round: Count = 0
    members: list[PlacementMember] = []
    until: Time | None = None
    moves: Count = 0
    refused: list[Id] = []
    place: Time | None = None
    first: Annotated[list[FamilyFirst], msgspec.Meta(max_length=MAX_FAMILIES_FIRST)] = []
    limit_turns: Count = 0

    def check(self, bundles: int) -> None:
        """Raise InvalidInput, which names a part of `placement`, if an owner with so many bundles cannot have it."""
        agents: set[str] = set()
        given: set[int] = set()
        for place, member in enumerate(self.members):
            field = f"placement.members[{place}]"
            if member.agent in agents:
                raise InvalidInput(f"{field}.agent", member.agent, "it is a member already; name each agent once")
            agents.add(member.agent)
            for number in member.bundles:
                if number >= bundles:
                    raise InvalidInput(f"{field}.bundles", number, f"there are {bundles} bundles, counted from 0")
                if number in given:
                    raise InvalidInput(f"{field}.bundles", number, "it is given twice; give each bundle to one member")
                given.add(number)
            if member.slice is not None:
                member.slice.check(f"{field}.slice")
            for name, port in member.ports.items():
                if not 0 < port <= MAX_PORT:
                    raise InvalidInput(f"{field}.ports.{name}", port, f"ports are from 1 to {MAX_PORT}")


class ReservedPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Equal bundles of a reservation. job: in a launch group, the job that they are bound to; "" for any."""

    gang: GangSpec
    job: MaybeId = ""


class ReservationRecord(Record, kw_only=True):
    """`reservations/<id>.json`: room on hosts that is held for a namespace's jobs, or for the jobs of one launch group.

    Attributes:
        kind: "reservation" or "group".
        name: for people.
        namespace: only jobs of this namespace may use it.
        pool: pool whose agents it uses, or `~<id>` of another reservation whose bundles it uses. Its own jobs wait in
            its private pool.
        same: "zone" or "region": all of its bundles are in the same one.
        parts: the bundles, numbered through all parts in order.
        low: number of bundles, counted from the first, with which it becomes held; the others follow when there is
            room.
        state: "forming", "held", "ended".
        parent: id of the job with which it ends; "" if none.
        parent_attempt: the attempt of that job.
        ttl: seconds by which a renewal extends it.
        expires_at: when it ends unless it is renewed.
        ended_at, reason: when and why it ended.
        ancestors: of a job that made it, with that job: as in a job's record.
    """

    id: str
    kind: str
    name: MaybeName = ""
    namespace: MaybeJobId = ""
    pool: Pool = "default"
    priority: Priority = 0
    submitted_at: Time = 0.0
    same: Annotated[str, msgspec.Meta(pattern=SAME_PATTERN)] = ""
    parts: list[ReservedPart] = msgspec.field(default_factory=list)
    low: Count = 0
    state: str = ReservationState.FORMING
    placement: Placement = msgspec.field(default_factory=Placement)
    parent: MaybeJobId = ""
    parent_attempt: Count = 0
    ttl: Interval | None = None
    expires_at: Time | None = None
    ended_at: Time | None = None
    reason: str = ""
    ancestors: Ancestors = msgspec.field(default_factory=list)

    def check(self) -> None:
        """Raise InvalidInput if it has too many bundles, or fewer than it needs, or its parts or members cannot be."""
        total = sum(part.gang.count for part in self.parts)
        if total > MAX_BUNDLES:
            raise InvalidInput("parts", f"{total} bundles", f"give at most {MAX_BUNDLES} together")
        if self.low > total:
            raise InvalidInput("low", self.low, f"it has {total} bundles; give at most so many")
        for place, part in enumerate(self.parts):
            part.gang.check(f"parts[{place}].gang")
        jobs = [part.job for part in self.parts if part.job]
        if len(set(jobs)) < len(jobs):
            raise InvalidInput("parts", jobs, "two parts are bound to one job; give each job one part")
        check_ancestors(self.id, self.ancestors)
        if self.pool == f"~{self.id}":
            raise InvalidInput("pool", self.pool, "it cannot be in its own private pool; name the pool around it")
        self.placement.check(total)


class PlacementEntry(Record, kw_only=True):
    """`placements/<pool>/...`: an index entry; its name holds everything that matters."""

    owner: str


class PoolPlan(Record, kw_only=True):
    """`pools/<pool>/plan.json`: for each agent, the owners that it should read; a hint that the reconciler writes.

    owners: by agent id, the keys of the records of the owners that the agent is or was assigned to.
    """

    owners: dict[str, list[Key]] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """Raise InvalidInput if a key is not that of an owner's record."""
        for agent, keys in self.owners.items():
            for key in keys:
                if not key.startswith(("jobs/", "reservations/")):
                    raise InvalidInput(f"owners.{agent}", key, "owners are jobs and reservations; name their records")
