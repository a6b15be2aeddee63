"""Launching: how the records of a group's jobs come to be, and at which ports a gang's replicas meet.

**Groups.** At the launch of a group the records of its jobs are created first, then the group's own record, which names
them all.

**Invariant.** Either all jobs of a group may start, or none ever does.

**Unsafe sequence.**

1. Submitter S creates the group's record first, and then half of its jobs.
2. S dies, and half of the group runs.

Or: somebody stops the jobs of a submitter that seems gone; S wakes and creates the group's record, and the jobs that
were not stopped yet run.

**Why this cannot happen.** The jobs wait in the group's private pool, at which no agent looks before the group is held,
and the group's record is created last. Whoever gives up an incomplete group first creates that record, already ended,
and then stops its jobs. If S wakes, it finds that the record exists.

**Ports** at which a gang's replicas meet. The host of replica 0 holds them from its vote on.

**Invariant.** All replicas of an attempt get the same port, and replica 0 can listen on it.

**Unsafe sequence.**

1. Each host chooses the same number without asking.
2. On the host of replica 0 another process uses that port.

Or: replica 0 picks a port once it runs, and the other replicas never learn it.

**Why this cannot happen.** The agent that votes for replica 0 holds the ports before it votes, and lists them with its
vote. The write that starts the gang copies them into the record, which every member reads before it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from fray_coordinator.protocol.placements.owners import Owner, Part
from fray_coordinator.protocol.retention import SUBMITTER_TIMEOUT
from fray_coordinator.protocol.scheduling import device_matches, kind_of_host, shortage
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord, ClusterSettings, ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec, JobSpec, needs_environment
from fray_layouts.states import ReservationKind, ReservationState


def bundles_of_job(spec: JobSpec, job: str) -> ReservedPart:
    """The bundles that a job of a group needs: one for each replica, bound to the job."""
    return ReservedPart(
        gang=GangSpec(
            resources=spec.resources,
            count=spec.replicas,
            slices=spec.slices if spec.replicas > spec.slices else 0,  # a slice of one host is any host that has it
            spread=spec.spread,
            same=spec.same,
            actor=spec.actor,
            packages=needs_environment(spec.environment),
            image=bool(spec.environment.docker_image),
        ),
        job=job,
    )


def in_private_pool(spec: JobSpec, reservation: str) -> JobSpec:
    """The spec of a job that waits in the private pool of a reservation or a group."""
    return replace(spec, pool=ReservationKeys.pool(reservation))


def common_pool(specs: Sequence[JobSpec]) -> str:
    """The pool whose agents a group takes. Raises InvalidInput if its jobs name several pools, or if there are none."""
    if not specs:
        raise InvalidInput("requests", [], "give at least one request: a group of nothing can never start")
    pools = sorted({spec.pool for spec in specs})
    if len(pools) > 1:
        raise InvalidInput("pool", pools, "the jobs of a group start together, on agents of one pool; name one")
    return pools[0]


def is_given_up(submitted_at: float, now: float, settings: ClusterSettings) -> bool:
    """Whether no submitter can still be about to create the record of a group that was begun at `submitted_at`."""
    return now > submitted_at + settings.quarantine + SUBMITTER_TIMEOUT


def given_up(reservation: str, pool: str, submitted_at: float, now: float) -> ReservationRecord:
    """The record that is created for a group without a submitter, before its jobs are stopped."""
    return ReservationRecord(
        id=reservation,
        kind=ReservationKind.GROUP,
        pool=pool,
        submitted_at=submitted_at,
        state=ReservationState.ENDED,
        ended_at=now,
        reason="its submitter died before the group was complete",
    )


def check_can_ever_fit(owner: Owner, agents: Sequence[AgentRecord]) -> None:
    """Raise InvalidInput if a bundle is larger than every live host of its kind.

    If no host has its device, the group waits, since slices come and go.

    agents: the live agents of the owner's pool.
    """
    for number, part in enumerate(owner.parts):
        lacks = _shortest_lack(part, agents)
        if lacks:
            remedy = f"no live agent's host is large enough ({'; '.join(lacks)}); ask for less, or start larger agents"
            raise InvalidInput(f"requests[{number}].resources", part.job.rpartition("-")[0], remedy)


def _shortest_lack(part: Part, agents: Sequence[AgentRecord]) -> list[str]:
    device = part.shape.device
    of_kind = [agent for agent in agents if not device or device_matches(device, agent.capacity.device)]
    lacks = [shortage(part.shape, agent.capacity, kind_of_host(agent), "here") for agent in of_kind]
    return min(lacks, key=len, default=[])


COORDINATOR_PORT, MEGASCALE_PORT = "coordinator", "megascale"
"""Names of the ports: one where the replicas' program coordinates itself, and one where several TPU slices do."""


def gang_port_names(spec: JobSpec, replicas: Collection[int]) -> list[str]:
    """The names of the ports that the host of these replicas holds for the whole gang."""
    if 0 not in replicas:
        return []
    return [COORDINATOR_PORT, MEGASCALE_PORT] if spec.slices > 1 else [COORDINATOR_PORT]
