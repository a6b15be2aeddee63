"""Drivers: programs outside of jobs. Each is recorded as a job that the program itself holds.

**Invariant.** Everything that a driver owns ends with it, however it ends. A driver that lives and can write loses
nothing.

**Unsafe sequence.**

1. A driver is frozen or cut off. It is declared dead, and the jobs that it owns are ended.
2. The driver comes back and creates more jobs, which nobody would ever end.

Or: the driver dies after it has written only one of its two records, and the jobs that it created have no owner.

**Why this cannot happen.** A driver is an agent that lists one job, so it sends heartbeats and is declared dead as
every agent is. Its record, which lists the job, is created first. The job is created RUNNING under the agent's lease.
It has one attempt, and ends when the agent is found dead (`commit.requeue_lost`), even if the job was created after the
death. The driver's jobs are children of that attempt: they end when it no longer runs, and a child that is submitted
too late is not started (`protocol.stopping`).
"""

from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import AgentRecord, Holding, JobLease, JobRecord
from fray_layouts.spec import EntrypointSpec, JobSpec, ResourceSpec

DRIVER_NAME = "driver"
"""The name of every driver's job."""

DRIVER_ATTEMPT = 1
"""The number of the only attempt of a driver's job."""


def driver_records(
    agent: str, job: str, host: str, namespace: str, user: str, program: str, now: float, interval: float
) -> tuple[AgentRecord, JobRecord]:
    """The two records of a new driver, in the order in which they are created.

    Args:
        agent, job: fresh ids.
        program: the command line, for people.
        interval: seconds between its heartbeats.
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
