"""Plain functions that change the record of a job on Ray, from its admission to its end.

The record is of the same type as that of a job in storage, but only the controller has it, in memory. What follows the
end of an attempt, and which retry budget it uses, is decided by `fray_coordinator.protocol.retries`, as in storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fray_coordinator.protocol.retries import after_exit, after_loss
from fray_coordinator.protocol.stopping import stop_now
from fray_coordinator.protocol.transitions import Event, Status, transition
from fray_layouts.records import (
    ClusterSettings,
    JobLease,
    JobRecord,
    JobResult,
    ParentLink,
    Placement,
    PlacementMember,
    ReplicaExit,
    total_usage,
)
from fray_layouts.spec import JobSpec, is_gang
from fray_layouts.states import ExitKind

SETTINGS = ClusterSettings()
"""The default settings: pauses between attempts, and how many losses in a row count as a failure."""


def admitted(spec: JobSpec, job_id: str, parent: JobRecord | None, now: float) -> JobRecord:
    """The record of a job that is submitted now."""
    link = ParentLink(job=parent.id, attempt=parent.attempt, detached=spec.detached) if parent is not None else None
    status = Status.GATHERING if is_gang(spec) else Status.PENDING
    return JobRecord(id=job_id, spec=spec, status=status, parent=link, submitted_at=now)


def started(job: JobRecord, members: Sequence[PlacementMember], now: float) -> JobRecord:
    """The record once all replicas have their places. members: in the order of the replicas."""
    if is_gang(job.spec):
        round = job.placement.round if job.placement is not None else 0
        placement = Placement(round=round, members=list(members))
        return transition(job, Event.START, started_at=now, placement=placement)
    lease = JobLease(agent=members[0].agent, host=members[0].host, since=now)
    return transition(job, Event.CLAIM, started_at=now, lease=lease)


def ended(job: JobRecord, exits: Mapping[int, ReplicaExit], now: float) -> JobRecord:
    """The record after an attempt whose replicas have all ended with these exits."""
    first = exits[0]
    used = total_usage(left.exit.usage for left in exits.values())
    if all(left.exit.kind == ExitKind.SUCCESS for left in exits.values()):
        end = replace(first.exit, usage=used)
        return transition(job, Event.SUCCEED, ended_at=now, exit=end, result=first.result, agent_deaths=0)
    if job.stop is not None:
        end = replace(first.exit, kind=ExitKind.STOPPED, message=job.stop.reason or "stopped", usage=used)
        return replace(stop_now(job, now, job.stop.reason, job.stop.by), exit=end)
    number = _cause(exits)
    cause = exits[number]
    end = cause.exit
    if is_gang(job.spec):
        end = replace(end, message=f"replica {number} on {cause.host}: {end.message or end.kind}")
    holder = JobLease(agent=cause.agent, host=cause.host, since=job.started_at or now)
    decide = after_loss if end.kind == ExitKind.LOST else after_exit
    return decide(job, end, holder, now, SETTINGS)


def _cause(exits: Mapping[int, ReplicaExit]) -> int:
    """The number of the replica whose exit ended the attempt. A lost replica comes first: the others fail by it."""

    def rank(number: int) -> tuple[int, float, int]:
        left = exits[number]
        order = {ExitKind.LOST: 0, ExitKind.STOPPED: 2}
        return order.get(ExitKind(left.exit.kind), 1), left.ended_at, number

    return min((number for number, left in exits.items() if left.exit.kind != ExitKind.SUCCESS), key=rank)


def nowhere(spec: JobSpec) -> list[PlacementMember]:
    """Placeholders for the places of replicas that have got none."""
    return [PlacementMember(agent="none", bundles=[number]) for number in range(spec.replicas)]


def result_of(encoding: str, size: int, key: str) -> JobResult:
    """The record of a result whose bytes are in Ray's object store."""
    return JobResult(encoding=encoding, key=key, size=size)
