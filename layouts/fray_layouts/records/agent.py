"""The record of an agent, and its parts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fray_layouts.bounds import (
    Amount,
    AttemptNumber,
    Count,
    FamilyDigits,
    Id,
    Interval,
    Key,
    MaybeId,
    MaybeName,
    Name,
    Priority,
    Time,
)
from fray_layouts.errors import InvalidInput
from fray_layouts.records.base import Record
from fray_layouts.records.job import ResourceUsage
from fray_layouts.records.placement import SliceMember
from fray_layouts.states import AgentState, HoldingPhase

MAX_ASKS = 32
"""Asks in a heartbeat. Each names a family, and if there are more, others are drawn the next time."""


class Holding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A lease, or a place in a gang or reservation, as its holder's heartbeat lists it.

    Attributes:
        attempt: the attempt that the agent holds or is about to hold.
        phase: "claiming" (not known to be applied), "running", "ending" (until terminal or the next entry exists),
            "reserved" (a vote), "refused".
        usage: the latest measurement; None if there is none yet, or the host cannot measure.
        gpus: indexes of its GPUs among those of the agent, from 0.
        ports: port numbers that it has on its host, by the names of the ports.
        activity: what the agent does before the task starts, such as "building the environment", for people.
        round: for a gang or a reservation, the round of the record that the agent has read.
        bundles: numbers of the bundles, or replicas, that the agent has.
        ends_by: time on the storage's clock by which it will have ended; None if nobody knows.
        family: the topmost job above it; "" if there is none.
        since: time on the storage's clock since which it uses its room; None for claims that are not known to be
            applied, for votes and for refusals.
        takes: of a single job, the resources that it uses; None for bundles, whose owners' records tell.
        within: the reservation in whose bundles it runs; "" for the host's own room.
    """

    attempt: AttemptNumber
    phase: str = HoldingPhase.CLAIMING
    usage: ResourceUsage | None = None
    gpus: list[Count] = []
    ports: dict[str, Count] = {}
    activity: str = ""
    round: Count = 0
    bundles: list[Count] = []
    ends_by: Time | None = None
    family: MaybeId = ""
    since: Time | None = None
    takes: Resources | None = None
    within: MaybeId = ""


class Ask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pending job that would fit on an agent's host but for room that is kept for an owner of a placement.

    Attributes:
        entry: the job's entry in the pending index.
        owner: id of the gang or reservation for which the room is kept.
        since: time on the storage's clock since which the entry is kept out.
    """

    entry: Key
    owner: Id
    since: Time


class Resources(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An amount of resources: a task's request, a host's capacity, or the free part of one. memory and disk in bytes.

    Attributes:
        cpu: cores, in thousandths.
        device: kind and variant of the accelerator: "gpu-h100", "tpu-v5litepod-16" ...; "" for none.
        device_count: number of accelerators (GPU) or of chips of this host (TPU).
        device_shares: for each GPU that jobs share, the thousandths that are free; whole and taken GPUs are not listed.
    """

    cpu: Amount = 0
    memory: Amount = 0
    disk: Amount = 0
    device: str = ""
    device_count: Amount = 0
    device_shares: list[Amount] = []


class KeptRoom(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Room that an agent keeps for an owner of a placement and that the owner does not have yet.

    Attributes:
        room: how much.
        priority, submitted_at: the owner's, for its place in the order.
        first: the digits of the families that go before it.
    """

    room: Resources
    priority: Priority = 0
    submitted_at: Time = 0.0
    first: list[FamilyDigits] = []


class Software(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The software of a host that jobs may require.

    Attributes:
        python: minor version of Python that the agent itself runs on, as "3.11"; callables without packages use it.
        pythons: minor versions for which the agent can build environments; none on a host without uv.
        containers: the engine that runs images: "podman", "docker", or "" for none.
        fray: version of Fray that the agent runs.
    """

    python: str = ""
    pythons: list[str] = []
    containers: str = ""
    fray: str = ""


class HintEndpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The address at which an agent takes hints. address: "host:port"; nonce: identity of the server there."""

    address: str
    nonce: str


class AgentRecord(Record, kw_only=True):
    """`agents/<agent_id>.json`: heartbeat, capacity, leases and mailbox of one agent process.

    Attributes:
        state: "live", "dead" (declared by an observer), "left" (ended by itself with nothing held).
        beat: counter that only the agent raises.
        interval: seconds between heartbeats that this record promises.
        holdings: leases by job id, unresolved claims included. In a dead record: the leases of the jobs to requeue.
        mail: somebody asks the agent to look at its jobs; senders set it, and an applied heartbeat clears it.
        drain: somebody asks the agent to take no more work and to leave when it has none.
        reaped: all jobs that this dead agent held have been requeued.
        started_at: when the process started.
        problem: what is wrong with the agent now, for people; "" if nothing is.
        unfit: because of the problem, the agent takes no work and is given none.
        preemptible: the host may be taken away at any time.
        requests: requests that the process had sent to the storage before this heartbeat, by kind: "writes", "lists",
            "reads", "deletes"; and "log_bytes", the bytes of the logs that it had stored.
        network: name of the network that its address belongs to; agents of one network can reach one another.
        bind: address that servers on this host listen on.
        advertise: host name or address under which others reach these servers.
        inbound: whether the servers can be reached at all; actors are only placed where they can.
        hint_endpoint: where the agent itself takes hints; None if it takes none.
        software: software of the host that jobs may require.
        zone, region, labels: location of the host, and labels that its operator gave it.
        slice: the host's place in a TPU slice; None if it is in none.
        supports_placements: the agent knows the rules of placements, so gangs and reservations may choose it.
        machine: name of the pool's machine that the agent runs on; "" if people started the agent.
        driver: the agent is a program outside of jobs. It runs no jobs, and holds only the job that stands for it.
        asks: jobs that it kept out, for owners' sake only, for a `repair_interval`; the pass lets some of them go
            first.
        kept: by owner, the free room that it keeps for owners which wait for more. For people, who ask why a job waits.
    """

    id: str
    host: str
    pool: Name
    state: str = AgentState.LIVE
    beat: Count = 0
    interval: Interval = 5.0
    holdings: dict[str, Holding] = msgspec.field(default_factory=dict)
    mail: bool = False
    drain: bool = False
    reaped: bool = False
    capacity: Resources = msgspec.field(default_factory=Resources)
    free: Resources = msgspec.field(default_factory=Resources)
    started_at: Time = 0.0
    problem: str = ""
    unfit: bool = False
    preemptible: bool = False
    requests: dict[str, Count] = msgspec.field(default_factory=dict)
    network: str = "default"
    bind: str = ""
    advertise: str = ""
    inbound: bool = True
    hint_endpoint: HintEndpoint | None = None
    software: Software = msgspec.field(default_factory=Software)
    zone: MaybeName = ""
    region: MaybeName = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    slice: SliceMember | None = None
    supports_placements: bool = False
    machine: MaybeId = ""
    driver: bool = False
    asks: Annotated[list[Ask], msgspec.Meta(max_length=MAX_ASKS)] = msgspec.field(default_factory=list)
    kept: dict[str, KeptRoom] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """Raise InvalidInput if there is no such place in its slice, or it lists a bundle twice."""
        if self.slice is not None:
            self.slice.check("slice")
        for owner, holding in self.holdings.items():
            if len(set(holding.bundles)) < len(holding.bundles):
                raise InvalidInput(f"holdings.{owner}.bundles", holding.bundles, "list each bundle once")
