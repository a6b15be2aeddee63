"""The placement of an owner's bundles on agents, in a gang's job record and in a reservation's."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Count, Id, Interval, Key, MaybeId, MaybeJobId, MaybeName, Name, Pool, Priority, Time
from fray_layouts.records.base import Record
from fray_layouts.spec import GangSpec
from fray_layouts.states import ReservationState


class SliceMember(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The place of a host in a TPU slice.

    Attributes:
        id: of the instance: a slice that is made again under the same name has another.
        type: such as "v5litepod-16".
        index: number of this host in the slice, from 0.
        hosts: of the slice.
    """

    id: Id
    type: Name
    index: Count = 0
    hosts: Count = 1


class PlacementMember(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An agent that is to have bundles of an owner, or has them.

    Attributes:
        agent: its id; `host`: name of its host, for people.
        address: host name or address under which the other members reach it.
        bundles: numbers of the owner's bundles; of a gang, of its replicas.
        slice: the host's place in a slice, if the bundles are whole slices.
        ports: numbers of the ports that it holds for all members, by their names, as its vote listed them.
    """

    agent: Id
    host: str = ""
    address: str = ""
    bundles: list[Count] = []
    slice: SliceMember | None = None
    ports: dict[str, Count] = {}


class Placement(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The members that an owner's bundles are assigned to, and how often that has changed.

    Attributes:
        round: raised by each change of members; never reset, not by a new attempt either. A vote names it.
        members: agents with the bundles that each is to have.
        until: storage's time until which later singles may use the members' room; None: they may not.
        moves: changes for a better set in this attempt.
        refused: agents that are left out for this attempt.
    """

    round: Count = 0
    members: list[PlacementMember] = []
    until: Time | None = None
    moves: Count = 0
    refused: list[Id] = []


class ReservedPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Equal bundles of a reservation. job: the one that they are bound to, in a launch group; "" for any."""

    gang: GangSpec
    job: MaybeId = ""


class ReservationRecord(Record, kw_only=True):
    """`reservations/<id>.json`: hosts that are held for a namespace's jobs, or for the jobs of one launch group.

    Attributes:
        kind: "reservation" or "group".
        name: for people.
        namespace: whose jobs go into it.
        pool: whose agents it takes, `~<id>` of another one whose bundles; its jobs wait in its private pool.
        same: "zone" or "region": all of its bundles are in one.
        parts: its bundles are numbered through all parts, in order.
        low: bundles, the first ones, that make it held; the others come as there is room.
        state: "forming", "held", "ended".
        parent: id of the job that it ends with; "" if none.
        parent_attempt: the attempt of that job.
        ttl: seconds that a renewal gives it.
        expires_at: when it ends unless it is renewed.
        ended_at, reason: when and why it ended.
    """

    id: str
    kind: str
    name: MaybeName = ""
    namespace: MaybeJobId = ""
    pool: Pool = "default"
    priority: Priority = 0
    submitted_at: Time = 0.0
    same: str = ""
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


class PlacementEntry(Record, kw_only=True):
    """`placements/<pool>/...`: an index entry; everything that matters is in its name."""

    owner: str


class PoolPlan(Record, kw_only=True):
    """`pools/<pool>/plan.json`: which owners an agent should read; a hint that the pass writes.

    owners: by agent id, keys of the records of the owners that it is or was assigned to.
    """

    owners: dict[str, list[Key]] = msgspec.field(default_factory=dict)
