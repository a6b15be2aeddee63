"""The replica of a job that this code runs in."""

from __future__ import annotations

from dataclasses import dataclass

from fray_agents.tasks.current_task import task_environ


@dataclass(frozen=True)
class Replica:
    """The place of this code among the processes of its job; of a job that is no gang, the only one.

    Attributes:
        index: number of this replica, from 0.
        count: how many there are.
        workers: the address of each, by its number; () outside of jobs.
        coordinator: address and port on replica 0's host that are kept for the gang; None if it is none.
        slice: number of its TPU slice, from 0.
        slices: how many slices there are.
    """

    index: int = 0
    count: int = 1
    workers: tuple[str, ...] = ()
    coordinator: str | None = None
    slice: int = 0
    slices: int = 1


def current_replica() -> Replica:
    """The replica that this code runs in, a process or a thread; outside of jobs, and in other jobs, the only one.

    It says what the FRAY_* variables of a process say. Threads have no variables of their own.
    """
    environ = task_environ()
    return Replica(
        index=int(environ.get("FRAY_REPLICA", "0")),
        count=int(environ.get("FRAY_REPLICAS", "1")),
        workers=tuple(filter(None, environ.get("FRAY_WORKERS", "").split(";"))),
        coordinator=environ.get("FRAY_COORDINATOR"),
        slice=int(environ.get("FRAY_SLICE", "0")),
        slices=int(environ.get("FRAY_SLICES", "1")),
    )
