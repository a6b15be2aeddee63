"""The job that this code runs in and its user, read from the FRAY_* variables."""

import getpass
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fray_agents.tasks.current_task import task_environ
from fray_coordinator.clock import system_random
from fray_coordinator.variables import read_variable
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds
from fray_layouts.records import ancestors_of_child
from fray_layouts.spec_checks import check_user


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
