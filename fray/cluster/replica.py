"""The replica of a job that this code runs in."""

from __future__ import annotations

from dataclasses import dataclass

from fray_agents.tasks.current_task import task_environ
from fray_coordinator.variables import read_variable


@dataclass(frozen=True)
class Replica:
    """One of the processes of a job. A job that is not a gang has a single one.

    Attributes:
        index: number of this replica, from 0.
        count: number of replicas of the job.
        workers: the address of each replica, in the order of their numbers; () outside of jobs.
        coordinator: "address:port" on replica 0's host that is kept for the gang; None if the job is not a gang.
        slice: number of this replica's TPU slice, from 0.
        slices: number of the job's slices.
    """

    index: int = 0
    count: int = 1
    workers: tuple[str, ...] = ()
    coordinator: str | None = None
    slice: int = 0
    slices: int = 1


def current_replica() -> Replica:
    """The replica that this code runs in; outside of gangs, and outside of jobs, the only one.

    It has the values of the FRAY_* variables, and works in jobs that are threads too, which have no variables.
    """
    environ = task_environ()
    return Replica(
        index=int(read_variable("FRAY_REPLICA", environ) or 0),
        count=int(read_variable("FRAY_REPLICAS", environ) or 1),
        workers=tuple(filter(None, (read_variable("FRAY_WORKERS", environ) or "").split(";"))),
        coordinator=read_variable("FRAY_COORDINATOR", environ),
        slice=int(read_variable("FRAY_SLICE", environ) or 0),
        slices=int(read_variable("FRAY_SLICES", environ) or 1),
    )
