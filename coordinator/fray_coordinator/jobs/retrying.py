"""Submits jobs that have ended again, each as a new job; `protocol.resubmission` decides which can be.

The new job names the old one. It has no parent and no id of its submitter's own. An actor that owns its name takes the
name anew, for the new job, so its next incarnation is the new job's.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from fray_coordinator.actors import naming
from fray_coordinator.concurrency import MAX_CONCURRENT_FOR_PEOPLE, map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import new_record, ring, submit_one
from fray_coordinator.protocol.resubmission import retry_obstacle
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord


async def retry(core: Core, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Submit jobs that have ended again: each as a new job that names the old one, without parent and without own id.

    Raises:
        InvalidInput: one cannot be submitted again (`retry_obstacles`); none was.
        NameTaken: another actor has the name of one of them now; others may have been submitted.
        StoreUnavailable: some may have been submitted.
    """
    for job, why in (await retry_obstacles(core, jobs)).items():
        raise InvalidInput("job", job, why)
    done = await map_concurrently(jobs, lambda job: _retry_one(core, job), MAX_CONCURRENT_FOR_PEOPLE)
    await ring(core, done)
    return done


async def retry_obstacles(core: Core, jobs: Sequence[JobRecord]) -> dict[str, str]:
    """By id, those of these jobs that cannot be submitted again, and why."""

    async def obstacle(job: JobRecord) -> tuple[str, str]:
        name = job.spec.actor and await naming.read_name(core, job.spec.namespace, "actor", _actor_name(job))
        return job.id, retry_obstacle(job, name or None)

    found = await map_concurrently(jobs, obstacle, MAX_CONCURRENT_FOR_PEOPLE)
    return {job: why for job, why in found if why}


async def _retry_one(core: Core, job: JobRecord) -> JobRecord:
    spec, new_id = replace(job.spec, id="", parent="", detached=False), ""
    if spec.actor:
        new_id = JobIds.unique(spec.namespace, spec.name, core.now(), core.rng.token())
        await naming.take_name(core, spec.namespace, "actor", _actor_name(job), new_id)
    new = replace(new_record(core, spec, None, None, new_id), retry_of=job.id)
    return (await submit_one(core, new)).job


def _actor_name(job: JobRecord) -> str:
    """The name of the actor that a job serves: the job's name without the actor's number in its group."""
    return job.spec.name.rpartition("-")[0]
