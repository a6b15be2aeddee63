"""The record of an agent, and its parts."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Amount, AttemptNumber, Count, Interval, MaybeId, MaybeName, Name, Time
from fray_layouts.records.base import Record
from fray_layouts.records.job import ResourceUsage
from fray_layouts.records.placement import SliceMember
from fray_layouts.states import AgentState, HoldingPhase


class Holding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A lease, or a place in a gang or reservation, as its holder's heartbeat lists it.

    Attributes:
        attempt: the attempt that is (or is about to be) held.
        phase: "claiming" (not known to be applied), "running", "ending" (until terminal or the next entry exists),
            "reserved" (a vote), "refused".
        usage: as last measured; None if it was not yet, or cannot be.
        gpus: places of the GPUs that it has among those of its agent, from 0.
        ports: numbers of the ports that it has on its host, by their names.
        activity: what the agent does before the task starts, such as "building the environment", for people.
        round: of a gang or a reservation, that of its record which the agent has read.
        bundles: numbers of the bundles, or replicas, that the agent has of it.
        ends_by: storage's time by which it will have ended; None: nobody knows.
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


class Resources(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An amount of resources: of a task's request, of a host, of the free part of one. memory and disk in bytes.

    Attributes:
        cpu: cores, in thousandths.
        device: "gpu-h100", "tpu-v5litepod-16" ...: kind and variant of the accelerator; "" for none.
        device_count: accelerators (GPU) or chips of this host (TPU).
        device_shares: thousandths that are left of each GPU that jobs share; none of a GPU that is whole or taken.
    """

    cpu: Amount = 0
    memory: Amount = 0
    disk: Amount = 0
    device: str = ""
    device_count: Amount = 0
    device_shares: list[Amount] = []


class Software(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The software of a host that jobs may ask for.

    Attributes:
        python: minor version of Python that the agent itself runs on, as "3.11"; callables without packages use it.
        pythons: minor versions that it can make environments with; none where there is no uv.
        containers: the engine that runs images: "podman", "docker" or "" for none.
        fray: version of the agent.
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
        interval: seconds between beats that this record promises.
        holdings: leases by job id, unresolved claims included. In a dead record: what has to be put back.
        mail: someone asks the agent to look at its jobs; set by senders, cleared by an applied beat.
        drain: someone asks the agent to take no more work and to leave when it has none.
        reaped: every holding of this dead agent has been put back.
        started_at: when the process started.
        problem: what is wrong with the agent now, for people; "" if nothing is.
        unfit: it takes no work while that lasts, and is given none.
        preemptible: the host may be taken away at any time.
        requests: number of requests that the process had sent to the storage before this beat: "writes", "lists",
            "reads", "deletes".
        network: name of the network that its address belongs to; agents of one network reach one another.
        bind: address that servers on this host listen on.
        advertise: host name or address under which others reach them.
        inbound: whether they can be reached at all; actors are not placed elsewhere.
        hint_endpoint: where the agent itself takes hints; None if it takes none.
        software: what jobs may ask of the host besides resources.
        zone, region, labels: where the host is, and what its operator says of it.
        slice: its place in a TPU slice; None if it is in none.
        places: it knows the rules of placements, so gangs and reservations may choose it.
        machine: name of the machine of its pool that it runs on; "" if people started it.
        driver: it is a program outside of jobs, which runs no jobs and holds only the one that stands for it.
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
    places: bool = False
    machine: MaybeId = ""
    driver: bool = False
