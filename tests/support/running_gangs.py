"""A gang whose record says that it runs, although no agent runs it, and the exits of its replicas."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import commit, notifications
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AttemptExit, JobRecord, JobResult, Placement, PlacementMember, ReplicaExit
from fray_layouts.spec_parsing import parse_spec


async def running_gang(
    core: Core, replicas: int = 2, fields: dict[str, Any] | None = None, **spec: Any
) -> Stored[JobRecord]:
    """A gang whose replica n runs on agent a<n> by its record, with its entry in the index."""
    wanted = {"name": "g", "entrypoint": {"command": ["x"]}, "replicas": replicas, "max_retries_failure": 1, **spec}
    members = [PlacementMember(agent=f"a{n}", host=f"h{n}", address=f"h{n}", bundles=[n]) for n in range(replicas)]
    job = JobRecord(
        id="g-1",
        spec=replace(parse_spec(wanted), namespace="g-1"),
        status="running",
        submitted_at=core.now(),
        started_at=core.now(),
        placement=Placement(round=1, members=members),
    )
    job = replace(job, **(fields or {}))
    await notifications.enter(core, job)
    await core.records.put(JobKeys.key(job.id), job, ABSENT)
    stored = await core.records.read(JobKeys.key(job.id), JobRecord)
    assert stored is not None
    return stored


async def leave_exit(core: Core, job: JobRecord, replica: int, kind: str = "success") -> ReplicaExit:
    """Create the exit of a replica of such a gang, as its member does."""
    left = ReplicaExit(
        agent=f"a{replica}",
        host=f"h{replica}",
        exit=AttemptExit(kind=kind),
        ended_at=core.now(),
        result=JobResult(encoding="json", value=replica),
    )
    return await commit.store_exit(core, job, replica, left)
