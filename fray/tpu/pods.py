"""Runs a function on every host of TPU slices, and returns the result of each host.

Among several acceptable numbers of slices it takes the largest that is available, and another when that changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from fray.cluster.api import Cluster
from fray.cluster.current import current_cluster, storage_cluster
from fray.errors import JobFailed
from fray.types import Entrypoint, EnvironmentConfig, JobId, JobInfo, JobRequest, JobStatus, ResourceConfig
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import live_agents, read_agents, read_job
from fray_coordinator.protocol.placements.hosts import HostView, host_view, is_whole_slice, newest_workers
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord

T = TypeVar("T")

CHECK_INTERVAL = 10.0
"""Seconds between two checks of the available slices. Each check reads every agent's record."""

CHECKS_BEFORE_CHANGE = 3
"""Checks in a row that must find the same better number before it is used: a lost slice may come back soon, and a
restart costs minutes."""


MAX_RETRIES_PREEMPTION, MAX_RETRIES_FAILURE = 1_000_000, 10
"""Default retries of resumable functions. Preemptions should never end them, but a function that always fails should
not run for ever."""


def run_on_pod(
    fn: Callable[[], T], tpu_type: str, num_slices: int = 1, *, environment: EnvironmentConfig | None = None
) -> list[T]:
    """Run a function once on every host of TPU slices at the same time, and return each host's result.

    It is not retried. If the caller is interrupted, for example by Ctrl-C, the job ends.

    Args:
        fn: the function, which is called without arguments in its own process on each host. Use `functools.partial` to
            pass arguments.
        tpu_type: type of the slices, such as "v5litepod-16".
        num_slices: number of slices.
        environment: variables, packages and code of the processes.

    Returns:
        The results in the order of the slices and of the hosts in each slice.

    Raises:
        JobFailed: the function failed on a host, which the message names, or a host was lost.
        InvalidInput: there is no such type, or `num_slices` is below 1.
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
    """Run a function on every host of one TPU slice, and start it again whenever the slice is lost or it fails.

    The function itself has to find its last checkpoint.

    Args:
        max_retries_preemption: further attempts after a host was lost.
        max_retries_failure: further attempts after the function failed.
        fn, tpu_type, environment: as for `run_on_pod`.

    Returns:
        The results in the order of the hosts.

    Raises:
        JobFailed: an attempt failed, and no retry was left; the message names the host.
        InvalidInput: as `run_on_pod`.
    """
    return _run(fn, tpu_type, [1], max_retries_preemption, max_retries_failure, environment)


def run_on_pod_multislice(
    fn: Callable[[], T], tpu_type: str, num_slices: int, *, environment: EnvironmentConfig | None = None
) -> list[T]:
    """`run_on_pod` on several slices. The processes have the MEGASCALE variables, so JAX sees all slices' devices."""
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
        num_slices: number of slices, or a list of acceptable numbers, of which the largest available one is used. When
            slices are lost or more become available, the job changes to another acceptable number: the function gets
            SIGTERM and starts again, which does not count as a retry.
        fn, tpu_type, max_retries_preemption, max_retries_failure, environment: as for `run_on_pod_resumable`.

    Raises:
        JobFailed, InvalidInput: as `run_on_pod_resumable`.
    """
    acceptable = num_slices if isinstance(num_slices, (list, tuple, range)) else [num_slices]
    return _run(fn, tpu_type, acceptable, max_retries_preemption, max_retries_failure, environment)


def _checked_counts(acceptable: Sequence[object]) -> list[int]:
    """The numbers of slices, smallest first. Raises InvalidInput if there is none, or one of them is not valid."""
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
    except BaseException:  # the caller was interrupted, so nobody waits for the job any more
        cluster.terminate(job)
        raise
    return cluster.results(job)


def _run_flex(cluster: Cluster, request: JobRequest, tpu_type: str, counts: Sequence[int]) -> list[Any]:
    count = best_count(counts, _available(cluster, tpu_type, ""))
    while True:
        resources = ResourceConfig.with_tpu(tpu_type, slice_count=count)
        job = cluster.launch(replace(request, resources=resources))
        try:
            count = _until_other_count(cluster, job, tpu_type, FlexChoice(counts, count))
        finally:
            cluster.terminate(job)  # in every case this job is over; if it has ended, this does nothing
        info = cluster.wait(job)
        if info.status is JobStatus.SUCCEEDED:
            return cluster.results(job)
        request = _with_budget_left(request, info)


def _until_other_count(cluster: Cluster, job: JobId, tpu_type: str, choice: FlexChoice) -> int:
    """Wait until the job has succeeded or should be restarted with another number of slices. Returns the number.

    Raises JobFailed if the job fails.
    """
    while True:
        try:
            cluster.wait(job, raise_on_failure=True, timeout=CHECK_INTERVAL)
        except TimeoutError:
            runs = cluster.poll(job).status is JobStatus.RUNNING
            if (count := choice.update(_available(cluster, tpu_type, job), runs)) != choice.current:
                return count
        else:
            return choice.current


def _with_budget_left(request: JobRequest, spent: JobInfo) -> JobRequest:
    return replace(
        request,
        max_retries_preemption=max(0, request.max_retries_preemption - spent.preemptions),
        max_retries_failure=max(0, request.max_retries_failure - spent.failures),
    )


@runtime_checkable
class _CountsSlices(Protocol):
    """A cluster without agents that knows itself how many slices a job could have."""

    def available_slices(self, tpu_type: str, job: str) -> int: ...


def _available(cluster: Cluster, tpu_type: str, job: str) -> int:
    """The number of slices that the job could have. Before there is a job (""), that of the default pool."""
    if isinstance(cluster, _CountsSlices):
        return cluster.available_slices(tpu_type, job)

    async def count(core: Core) -> int:
        pool = (await read_job(core, job)).record.spec.pool if job else "default"
        agents = await read_agents(core, problems={})
        return available_slices(live_agents(agents, core.now()), tpu_type, job, pool)

    return storage_cluster(cluster).run(count)


def best_count(counts: Iterable[int], available: int) -> int:
    """The largest acceptable number that is available; the smallest acceptable number if none of them is."""
    ordered = sorted(counts)
    return max((count for count in ordered if count <= available), default=ordered[0])


def available_slices(agents: Iterable[AgentRecord], tpu_type: str, job: str, pool: str = "default") -> int:
    """The number of whole slices of a type that a job has or could have at once.

    Args:
        agents: the living agents.
        job: the job's id. Slices that are held for it count as available.
        pool: the job's pool; "~" and a reservation's id for the hosts of that reservation.
    """
    reservation = ReservationKeys.of_pool(pool)
    known = {agent.id: agent for agent in agents if _is_in(agent, pool, reservation)}
    hosts = (host_view(agent, {}) for agent in known.values())
    slices = newest_workers(host for host in hosts if host.slice is not None and host.slice.type == tpu_type)

    def is_free(host: HostView) -> bool:
        agent = known[host.agent]
        return host.willing and agent.holdings.keys() <= {job, reservation}

    return sum(is_whole_slice(workers) and all(map(is_free, workers.values())) for workers in slices.values())


def _is_in(agent: AgentRecord, pool: str, reservation: str) -> bool:
    return reservation in agent.holdings if reservation else agent.pool == pool


@dataclass(slots=True)
class FlexChoice:
    """Decides whether a job should be restarted with another number of slices.

    Attributes:
        counts: the acceptable numbers.
        current: the number that the job has or waits for.
    """

    counts: Sequence[int]
    current: int
    _wanted: int = 0
    _agreeing: int = 0

    def update(self, available: int, runs: bool) -> int:
        """Take the number of available slices. Returns the number to use: `current`, unless it should change.

        Args:
            runs: whether the job runs. Then fewer available slices are no reason for a change.
        """
        wanted = best_count(self.counts, available)
        if wanted == self.current or (runs and wanted < self.current):
            self._agreeing = 0
            return self.current
        self._agreeing = self._agreeing + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        return wanted if self._agreeing >= CHECKS_BEFORE_CHANGE else self.current
