"""Creates job contexts by their kind, and keeps the default context of each job."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, TypeVar

from fray.cluster.backends import backend_of, is_private_root
from fray.cluster.current import environment_root
from fray.errors import InvalidInput
from fray.job.in_process import SyncContext, ThreadContext
from fray.job.job_context import JobContext
from fray.resources import ResourceConfig, Size
from fray_coordinator.per_process import PerProcess
from fray_runtime.current_task import task_environ
from fray_runtime.variables import read_variable

ContextKind = Literal["sync", "threadpool", "fray", "ray", "auto"]


def create_job_ctx(
    context_type: ContextKind | str = "auto",
    max_workers: int = 1,
    *,
    memory: Size | None = None,
    num_cpus: float | None = None,
    **ray_options: Any,
) -> JobContext:
    """Create a job context.

    Args:
        context_type: "sync" runs tasks at once on the caller's thread; "threadpool" on threads of this process; "fray"
            on workers of the current cluster; "ray" as tasks of the Ray that this process is connected to or runs in.
            "auto" is "ray" or "fray" if FRAY_CLUSTER_SPEC names a cluster, as it does in every job; "ray" if this
            process is connected to Ray; else, and on Iris, "threadpool".
        max_workers: number of threads, or of workers on the cluster. On Ray, Ray decides how many tasks run at once.
        memory, num_cpus: what each worker on the cluster, or each task on Ray, reserves. Threads ignore them.
        ray_options: Ray's options for its tasks, such as `max_retries`; the other kinds ignore them.

    Raises:
        InvalidInput: there is no such kind, or no Ray.
    """
    match context_type:
        case "sync":
            return SyncContext()
        case "threadpool":
            return ThreadContext(max_workers)
        case "fray":
            return _on_cluster(max_workers, memory, num_cpus)
        case "ray":
            return _on_backend("ray:auto", max_workers, memory, num_cpus, ray_options)
        case "auto":
            root = environment_root() or "local"
            if backend_of(root) is not None:
                return _on_backend(root, max_workers, memory, num_cpus, ray_options)
            return ThreadContext(max_workers) if is_private_root(root) else _on_cluster(max_workers, memory, num_cpus)
    kinds = "give 'sync', 'threadpool', 'fray', 'ray' or 'auto'"
    raise InvalidInput("context_type", context_type, f"Unknown context type; {kinds}")


def _on_cluster(max_workers: int, memory: Size | None, num_cpus: float | None) -> JobContext:
    from fray.job.cluster_context import ClusterContext  # imported late: contexts of one process do not need it

    return ClusterContext(max_workers, resources=_task_resources(memory, num_cpus))


def _on_backend(
    root: str, max_workers: int, memory: Size | None, num_cpus: float | None, options: dict[str, Any]
) -> JobContext:
    backend = backend_of(root)
    assert backend is not None
    resources = partial(_task_resources, memory, num_cpus)
    context: JobContext = backend.job_context(root, max_workers, resources, options)
    return context


def _task_resources(memory: Size | None, num_cpus: float | None) -> ResourceConfig:
    return ResourceConfig(cpu=1 if num_cpus is None else num_cpus, memory=memory)


_job_context: ContextVar[JobContext | None] = ContextVar("fray_job_context", default=None)

_lock = PerProcess(threading.Lock)
_defaults: PerProcess[dict[tuple[str | None, ...], JobContext]] = PerProcess(dict)
"""The shared context of each job. A forked child starts without, because it does not have the contexts' threads."""


C = TypeVar("C", bound=JobContext)


@contextmanager
def fray_default_job_ctx(ctx: C) -> Iterator[C]:
    """Make `ctx` the default job context of this thread or coroutine inside the `with` block, which gets it.

        with fray_default_job_ctx(create_job_ctx("threadpool", max_workers=8)):
            main()  # get_default_job_ctx() there is that one

    Threads that are started in the block do not inherit it. The context is not closed at the end.
    """
    token = _job_context.set(ctx)
    try:
        yield ctx
    finally:
        _job_context.reset(token)


def get_default_job_ctx() -> JobContext:
    """The context of the enclosing `fray_default_job_ctx`; else the job's shared context of kind "auto"."""
    return _job_context.get() or _shared()


def _shared() -> JobContext:
    """The shared context of the caller's job. A process may run several jobs in threads, each with its own context."""
    environ = task_environ()
    job = tuple(read_variable(name, environ) for name in ("FRAY_CLUSTER_SPEC", "FRAY_JOB_ID", "FRAY_ATTEMPT"))
    with _lock.value:
        if job not in _defaults.value:
            _defaults.value[job] = create_job_ctx("auto")
        return _defaults.value[job]
