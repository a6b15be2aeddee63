"""The job, and the replica of it, that this code runs in, read from the FRAY_* variables."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fray_coordinator.clock import system_random
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds
from fray_layouts.records import ancestors_of_child
from fray_layouts.spec_parsing import check_user
from fray_runtime.current_task import task_environ
from fray_runtime.variables import read_variable


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


@dataclass(frozen=True)
class CurrentJob:
    """The job whose attempt runs this code.

    Attributes:
        cluster: root URL of the cluster that runs it.
        attempt: number of the attempt, from 1.
        task_dir: the attempt's directory on this host.
        ancestors: the ids of the jobs above it, the topmost first.
    """

    cluster: str
    job_id: str
    attempt: int
    namespace: str
    task_dir: str
    ancestors: tuple[str, ...] = ()

    @property
    def family(self) -> list[str]:
        """The ancestors of the jobs and reservations that it makes."""
        return ancestors_of_child(self.ancestors, self.job_id)


def current_job() -> CurrentJob | None:
    """The job whose attempt runs this code; None outside of jobs."""
    environ = task_environ()
    if not (job_id := read_variable("FRAY_JOB_ID", environ)):
        return None
    return CurrentJob(
        cluster=_given(environ, "FRAY_CLUSTER_SPEC"),
        job_id=job_id,
        attempt=int(_given(environ, "FRAY_ATTEMPT")),
        namespace=_given(environ, "FRAY_NAMESPACE"),
        task_dir=_given(environ, "FRAY_TASK_DIR"),
        ancestors=tuple((read_variable("FRAY_ANCESTORS", environ) or "").split()),
    )


def _given(environ: Mapping[str, str], name: str) -> str:
    """A variable that every task has. Raises InvalidInput if this environment has a job's id without it."""
    if value := read_variable(name, environ):
        return value
    raise InvalidInput(name, "", "a job's process has it; unset FRAY_JOB_ID if this is none")


def current_job_on(root: str) -> CurrentJob | None:
    """The job whose attempt runs this code, if it belongs to the cluster under `root`; else None."""
    job = current_job()
    return job if job is not None and job.cluster == root else None


def current_user() -> str:
    """The user for jobs that are submitted here: FRAY_USER, which a job has from its own user, else the login name.

    Raises InvalidInput if that cannot be a job's user.
    """
    user = read_variable("FRAY_USER", task_environ())
    if user is None:
        user = _login_name()
    check_user("FRAY_USER", user)
    return user


def made_up_namespace() -> str:
    """A new namespace for a program that has chosen none."""
    return JobIds.fresh("driver", time.time(), system_random().token())


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return ""
