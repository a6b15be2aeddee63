"""Running a function on every host of TPU slices, and returning what each of them returned."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fray.cluster.api import Cluster
from fray.cluster.current import current_cluster, storage_cluster
from fray.cluster.ray.jobs import RayJobs
from fray.errors import JobFailed
from fray.tpu import flex
from fray.types import Entrypoint, EnvironmentConfig, JobId, JobInfo, JobRequest, JobStatus, ResourceConfig
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import live_agents, read_agents, read_job
from fray_layouts.errors import InvalidInput

T = TypeVar("T")

MAX_RETRIES_PREEMPTION, MAX_RETRIES_FAILURE = 1_000_000, 10
"""Of what is resumed: preemption is nobody's fault, and a function that always fails should not run for ever."""


def run_on_pod(
    fn: Callable[[], T], tpu_type: str, num_slices: int = 1, *, environment: EnvironmentConfig | None = None
) -> list[T]:
    """Run a function once on every host of TPU slices, all at once, and return what each host returned.

    It is not tried again. Who is interrupted, by Ctrl-C for example, ends the job.

    Args:
        fn: called without arguments in a process of its own on each host; `functools.partial` gives it some.
        tpu_type: of the slices, such as "v5litepod-16".
        num_slices: how many slices.
        environment: variables, packages and code of the processes.

    Returns:
        The results in the order of slices, and of the hosts in each.

    Raises:
        JobFailed: the function failed on a host, which the message names, or a host was lost.
        InvalidInput: there is no such type, or no such number of slices.
    """
    return _run(fn, tpu_type, [num_slices], 0, 0, environment)


def run_on_pod_resumable(
    fn: Callable[[], T],
    tpu_type: str,
    max_retries_preemption: int = MAX_RETRIES_PREEMPTION,
    max_retries_failure: int = MAX_RETRIES_FAILURE,
    *,
    environment: EnvironmentConfig | None = None,
) -> list[T]:
    """Run a function on every host of one TPU slice, from its beginning again whenever the slice is lost or it fails.

    The function looks for its last checkpoint itself.

    Args:
        max_retries_preemption: further attempts after a host was lost.
        max_retries_failure: further attempts after the function failed.
        fn, tpu_type, environment: as for `run_on_pod`.

    Returns:
        The results of the hosts, in their order.

    Raises:
        JobFailed: an attempt failed, and no retry was left; the message names the host.
        InvalidInput: as `run_on_pod`.
    """
    return _run(fn, tpu_type, [1], max_retries_preemption, max_retries_failure, environment)


def run_on_pod_multislice(
    fn: Callable[[], T], tpu_type: str, num_slices: int, *, environment: EnvironmentConfig | None = None
) -> list[T]:
    """`run_on_pod` on several slices: the processes find MEGASCALE variables, so JAX sees the devices of all."""
    return run_on_pod(fn, tpu_type, num_slices, environment=environment)


def run_on_pod_multislice_resumable(
    fn: Callable[[], T],
    tpu_type: str,
    num_slices: int | Sequence[int],
    max_retries_preemption: int = MAX_RETRIES_PREEMPTION,
    max_retries_failure: int = MAX_RETRIES_FAILURE,
    *,
    environment: EnvironmentConfig | None = None,
) -> list[T]:
    """`run_on_pod_resumable` on several slices.

    Args:
        num_slices: how many; or a list of acceptable numbers. Of these the largest is taken for which there are slices.
            When slices are lost it goes on with fewer, and when there are slices for more, with those: the function is
            sent SIGTERM and begins again, which is not counted as a retry.
        fn, tpu_type, max_retries_preemption, max_retries_failure, environment: as for `run_on_pod_resumable`.

    Raises:
        JobFailed, InvalidInput: as `run_on_pod_resumable`.
    """
    acceptable = num_slices if isinstance(num_slices, (list, tuple, range)) else [num_slices]
    return _run(fn, tpu_type, acceptable, max_retries_preemption, max_retries_failure, environment)


def _checked_counts(acceptable: Sequence[object]) -> list[int]:
    """The numbers of slices, smallest first. Raises InvalidInput: there is none, or one is no number of slices."""
    if not acceptable:
        raise InvalidInput("num_slices", acceptable, "name at least one number of slices")
    counts: set[int] = set()
    for count in acceptable:
        if not isinstance(count, int):
            raise InvalidInput("num_slices", count, "give a number, or a list of acceptable numbers")
        if count < 1:
            raise InvalidInput("num_slices", count, "ask for at least 1 slice")
        counts.add(count)
    return sorted(counts)


def _run(
    fn: Callable[[], T],
    tpu_type: str,
    acceptable: Sequence[object],
    max_retries_preemption: int,
    max_retries_failure: int,
    environment: EnvironmentConfig | None,
) -> list[T]:
    counts = _checked_counts(acceptable)
    request = JobRequest(
        _name_of(fn),
        Entrypoint.from_callable(fn),
        ResourceConfig.with_tpu(tpu_type, slice_count=counts[0]),
        environment=environment,
        max_retries_preemption=max_retries_preemption,
        max_retries_failure=max_retries_failure,
    )
    cluster = current_cluster()
    return _run_fixed(cluster, request) if len(counts) == 1 else _run_flex(cluster, request, tpu_type, counts)


def _name_of(fn: Callable[[], Any]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "", getattr(fn, "__name__", "")).strip("-_")
    return name[:64] or "pod"


def _run_fixed(cluster: Cluster, request: JobRequest) -> list[Any]:
    job = cluster.launch(request)
    try:
        cluster.wait(job, raise_on_failure=True)
    except JobFailed:
        raise
    except BaseException:  # nobody waits for it any more
        cluster.terminate(job)
        raise
    return cluster.results(job)


def _run_flex(cluster: Cluster, request: JobRequest, tpu_type: str, counts: Sequence[int]) -> list[Any]:
    count = flex.best_count(counts, _available(cluster, tpu_type, ""))
    while True:
        resources = ResourceConfig.with_tpu(tpu_type, slice_count=count)
        job = cluster.launch(replace(request, resources=resources))
        try:
            count = _until_other_count(cluster, job, tpu_type, flex.FlexChoice(counts, count))
        finally:
            cluster.terminate(job)  # whatever comes next, this one is over; one that has ended is left as it is
        info = cluster.wait(job)
        if info.status is JobStatus.SUCCEEDED:
            return cluster.results(job)
        request = _with_budget_left(request, info)


def _until_other_count(cluster: Cluster, job: JobId, tpu_type: str, choice: flex.FlexChoice) -> int:
    """Wait until the job has succeeded, or should go on with another number of slices, which is returned.

    Raises JobFailed.
    """
    while True:
        try:
            cluster.wait(job, raise_on_failure=True, timeout=flex.LOOK_INTERVAL)
        except TimeoutError:
            runs = cluster.poll(job).status is JobStatus.RUNNING
            if (count := choice.look(_available(cluster, tpu_type, job), runs)) != choice.current:
                return count
        else:
            return choice.current


def _with_budget_left(request: JobRequest, spent: JobInfo) -> JobRequest:
    return replace(
        request,
        max_retries_preemption=max(0, request.max_retries_preemption - spent.preemptions),
        max_retries_failure=max(0, request.max_retries_failure - spent.failures),
    )


def _available(cluster: Cluster, tpu_type: str, job: str) -> int:
    """The slices that the job could have; before there is one ("") those of the default pool."""
    if isinstance(cluster, RayJobs):
        return cluster.available_slices(tpu_type, job)

    async def count(core: Core) -> int:
        pool = (await read_job(core, job)).record.spec.pool if job else "default"
        agents = await read_agents(core, problems={})
        return flex.available_slices(live_agents(agents, core.now()), tpu_type, job, pool)

    return storage_cluster(cluster).run(count)
