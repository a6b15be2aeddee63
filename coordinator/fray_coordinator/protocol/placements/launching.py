"""Launching a group: the records of its jobs come first, then the group's own, which names them all.

**Invariant.** Either all jobs of a group may start, or none ever does.

**Unsafe sequence.** The group's record comes first, the submitter dies, and the half of the jobs that it has created
runs. Or: somebody stops the jobs of a submitter that seems gone; it wakes up and creates the group's record, and what
was not stopped yet runs.

**Why this cannot happen.** The jobs wait in the group's private pool, at which nobody looks before the group is held,
and its record is created last. Who gives a group up first creates that record himself, ended; then its jobs are
stopped, and a submitter that wakes finds the name taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fray_coordinator.protocol.placements.owners import Owner, Part
from fray_coordinator.protocol.retention import SUBMITTER_TIMEOUT
from fray_coordinator.protocol.scheduling import kind_of_host, shortage
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import Shape
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord, ClusterSettings, ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec, JobSpec, needs_environment
from fray_layouts.states import ReservationKind, ReservationState


def bundles_of_job(spec: JobSpec, job: str) -> ReservedPart:
    """The bundles that a job of a group needs, one for each replica, bound to it."""
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
    """The pool whose agents a group takes. Raises InvalidInput: its jobs name several, or there are none."""
    if not specs:
        raise InvalidInput("requests", [], "give at least one request: a group of nothing can never start")
    pools = sorted({spec.pool for spec in specs})
    if len(pools) > 1:
        raise InvalidInput("pool", pools, "the jobs of a group start together, on agents of one pool; name one")
    return pools[0]


def is_given_up(submitted_at: float, now: float, settings: ClusterSettings) -> bool:
    """Whether no submitter can still be about to create the record of a group that was begun then."""
    return now > submitted_at + settings.quarantine + SUBMITTER_TIMEOUT


def given_up(reservation: str, pool: str, submitted_at: float, now: float) -> ReservationRecord:
    """The record that is created for a group whose submitter is gone, before its jobs are stopped."""
    return ReservationRecord(
        id=reservation,
        kind=ReservationKind.GROUP,
        pool=pool,
        submitted_at=submitted_at,
        state=ReservationState.ENDED,
        ended_at=now,
        reason="its submitter was gone before the group was complete",
    )


def check_can_ever_fit(owner: Owner, agents: Sequence[AgentRecord]) -> None:
    """Raise InvalidInput if a bundle is larger than every host of its kind that is there.

    Where there is no host with its device the group waits: slices come and go.

    Args:
        agents: that live and are in the owner's pool.
    """
    for number, part in enumerate(owner.parts):
        lacks = _shortest_lack(part, agents)
        if lacks:
            remedy = (
                f"no host that is there can ever have it ({'; '.join(lacks)}); ask for less, or start larger agents"
            )
            raise InvalidInput(f"requests[{number}].resources", part.job.rpartition("-")[0], remedy)


def _shortest_lack(part: Part, agents: Sequence[AgentRecord]) -> list[str]:
    of_kind = [agent for agent in agents if _has_device(part.shape, agent)]
    lacks = [shortage(part.shape, agent.capacity, kind_of_host(agent), "here") for agent in of_kind]
    return min(lacks, key=len, default=[])


def _has_device(shape: Shape, agent: AgentRecord) -> bool:
    has = agent.capacity.device
    return not shape.device or has == shape.device or has.startswith(f"{shape.device}-")
