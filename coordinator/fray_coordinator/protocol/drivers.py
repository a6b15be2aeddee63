"""Drivers: programs outside of jobs, each a job of the cluster that the program itself holds.

**Invariant.** What a driver owns ends with it, however that ended; a driver that lives, and can write, loses nothing.

**Unsafe sequence.** A driver is frozen, or cut off; it is declared dead, and what it owns is ended; it comes back and
creates more, which nobody would ever end. Or: it dies between the records that it needs, and what it then owns has no
owner.

**Why this cannot happen.** A driver is an agent that lists one job, so it beats and dies as every agent does. The job
is born running under the agent's lease, after the agent's record, which lists it; it has one attempt, and ends when the
agent is found dead (`commit.requeue_lost`), also if it was created later than that. What the driver owns are children
of that attempt: they are ended when it no longer runs, and one that is submitted too late is not started (`cascade`).
"""

from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import AgentRecord, Holding, JobLease, JobRecord
from fray_layouts.spec import EntrypointSpec, JobSpec, ResourceSpec

DRIVER_NAME = "driver"
"""The name of every driver's job."""

DRIVER_ATTEMPT = 1
"""The only one of a driver's job."""


def driver_records(
    agent: str, job: str, host: str, namespace: str, user: str, program: str, now: float, interval: float
) -> tuple[AgentRecord, JobRecord]:
    """The two records of a new driver, in the order in which they are created.

    Args:
        agent, job: the ids; both are fresh.
        program: what runs, for people.
        interval: seconds between its beats.
    """
    spec = JobSpec(
        name=DRIVER_NAME,
        entrypoint=EntrypointSpec(command=[program]),
        resources=ResourceSpec(cpu=0.0),
        max_retries_preemption=0,
        namespace=namespace,
        user=user,
    )
    holder = AgentRecord(
        id=agent,
        host=host,
        pool=spec.pool,
        interval=interval,
        holdings={job: Holding(attempt=DRIVER_ATTEMPT)},
        started_at=now,
        inbound=False,
        driver=True,
    )
    return holder, JobRecord(
        id=job,
        spec=spec,
        status=str(Status.RUNNING),
        attempt=DRIVER_ATTEMPT,
        lease=JobLease(agent=agent, host=host, since=now),
        submitted_at=now,
        started_at=now,
        driver=True,
    )
