"""The plain functions of jobs on Ray: which nodes are whole slices, and what follows an attempt. They need no Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fray.backends.ray import attempts
from fray.backends.ray.attempt_run import error_text
from fray.backends.ray.controller import RETENTION, JobController, KnownJob
from fray.backends.ray.demands import RaySlice, slice_bundles, too_large_for, whole_slices
from fray.backends.ray.jobs import RayJobs
from fray.errors import InvalidInput
from fray.job.cluster_context import ClusterContext
from fray.job_spec import to_spec
from fray.pool import WorkerPool
from fray.queue import HttpQueueServer
from fray.rpc import ActorServer
from fray.types import Entrypoint, JobRequest, ResourceConfig
from fray_coordinator.jobs.logs import LogLine
from fray_coordinator.protocol.stopping import request_stop
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import AttemptExit, JobRecord, ReplicaExit, ResourceUsage
from fray_layouts.states import ExitKind, StopOrigin


def node(number: int, *names: str) -> dict[str, float]:
    return {"CPU": 8.0, "TPU": 4.0, f"node:10.0.0.{number}": 1.0, **dict.fromkeys(names, 1.0)}


def test_a_slice_is_whole_if_all_of_its_nodes_are_there() -> None:
    head = "TPU-v4-16-head"
    nodes = {
        "d": node(4, "slice-b", head),
        "c": node(3, "slice-b"),
        "a": node(1, "slice-a", head),
        "b": node(2, "other"),
        "e": {"CPU": 8.0, "node:10.0.0.5": 1.0, "node:__internal_head__": 1.0},
    }
    assert whole_slices(nodes, "v4-16", {}) == [RaySlice("slice-b", ("node:10.0.0.4", "node:10.0.0.3"))]
    assert whole_slices({**nodes, "b": node(2, "slice-a")}, "v4-16", {})[0].name == "slice-a"
    assert whole_slices(nodes, "v4-8", {}) == []


def test_the_nodes_of_a_slice_are_in_the_order_of_the_tpus_workers() -> None:
    nodes = {name: node(number, "pod") for number, name in enumerate("abcd")}
    nodes["c"]["TPU-v4-32-head"] = 1.0
    (found,) = whole_slices(nodes, "v4-32", {"c": 0, "d": 1, "a": 3, "b": 2})
    assert found.nodes == ("node:10.0.0.2", "node:10.0.0.3", "node:10.0.0.1", "node:10.0.0.0")
    first, second, *_ = slice_bundles([found], "v4-32", {"TPU": 4.0})
    assert first == {"TPU": 4.0, "TPU-v4-32-head": 1.0, "pod": 1.0, "node:10.0.0.2": 0.001}
    assert second == {"TPU": 4.0, "pod": 1.0, "node:10.0.0.3": 0.001}


def finished(job_id: str, ended_at: float) -> KnownJob:
    ended = attempts.ended(running(), left(ExitKind.SUCCESS), ended_at)
    return KnownJob(msgspec.structs.replace(ended, id=job_id), "")


@pytest.mark.parametrize(
    ("asked", "wants"),
    [
        (ResourceConfig(cpu=8), ""),
        (ResourceConfig(cpu=0), ""),
        (ResourceConfig(cpu=16), "CPU 16"),
        (ResourceConfig.with_gpu("h100", 2), "CPU 4, GPU 2, memory 16 GB, accelerator_type:H100"),
        (ResourceConfig(cpu=4, memory="64GB"), "CPU 4, memory 64 GB"),
    ],
)
def test_a_request_that_no_node_could_ever_have_room_for_is_reported(asked: ResourceConfig, wants: str) -> None:
    spec = to_spec(JobRequest("large", Entrypoint.from_binary("true"), asked))
    reason = too_large_for([{"CPU": 8.0, "memory": 32e9}, {"CPU": 2.0, "memory": 32e9, "GPU": 1.0}], spec.resources)
    assert (f"no node of this Ray has {wants} at once (the largest has CPU 8)" in reason) if wants else not reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "Failed.\nTraceback ...\n    ERROR: No matching distribution found for x\n",
            "ERROR: No matching distribution found for x",
        ),
        ("the node\n was lost", "the node was lost"),
    ],
)
def test_pips_errors_are_taken_from_rays_message(error: str, said: str) -> None:
    assert error_text(RuntimeError(error)) == said


def test_a_finished_job_is_known_for_a_day() -> None:
    jobs, now = JobController(), time.time()
    jobs._jobs = {"old": finished("old", now - RETENTION - 1), "new": finished("new", now - RETENTION + 600)}
    jobs._forget_old()
    assert list(jobs._jobs) == ["new"]


def test_the_end_of_a_jobs_output_is_kept() -> None:
    known = KnownJob(running(), "")
    for number in range(300):
        known.append([LogLine(1, 0, "", "stdout", b"%d" % number + b"x" * 10_000, True)])
    assert known.lines[-1].data.startswith(b"299")
    assert 0 < known.dropped == 300 - len(known.lines)
    assert sum(len(line.data) for line in known.lines) <= 1024**2


@pytest.mark.parametrize("made", [WorkerPool, ClusterContext, ActorServer, HttpQueueServer])
def test_features_that_work_through_storage_refuse_ray(made: Callable[..., object]) -> None:
    with pytest.raises(InvalidInput, match=r"works through storage, .*StorageCluster\(root\)"):
        made(cluster=RayJobs())


def running(**fields: Any) -> JobRecord:
    spec = to_spec(JobRequest("job", Entrypoint.from_binary("true"), **fields))
    job = attempts.admitted(spec, "job-1", None, 1.0)
    return attempts.started(job, attempts.nowhere(spec), 2.0)


def left(*kinds: ExitKind) -> dict[int, ReplicaExit]:
    exits = [AttemptExit(kind=kind, message=f"message {number}") for number, kind in enumerate(kinds)]
    return {n: ReplicaExit(agent="a", host="h", exit=end, ended_at=3.0 + n) for n, end in enumerate(exits)}


def test_an_attempt_succeeds_only_when_every_replica_has() -> None:
    job = running(replicas=2)
    assert attempts.ended(job, left(ExitKind.SUCCESS, ExitKind.SUCCESS), 9.0).status == Status.SUCCEEDED
    failed = attempts.ended(job, left(ExitKind.SUCCESS, ExitKind.EXITED), 9.0)
    assert failed.status == Status.FAILED
    assert failed.exit is not None
    assert failed.exit.message == "replica 1 on h: message 1"


def test_the_usage_of_a_stopped_job_is_known() -> None:
    exits = left(ExitKind.SIGNALLED, ExitKind.SIGNALLED)
    for number, one in exits.items():
        one.exit.usage = ResourceUsage(cpu_seconds=1.0 + number)
    asked = request_stop(running(replicas=2), 8.0, "not needed", StopOrigin.USER)
    assert asked is not None
    stopped = attempts.ended(asked, exits, 9.0)
    assert stopped.exit is not None
    assert stopped.exit.usage is not None
    assert (stopped.status, stopped.exit.message, stopped.exit.usage.cpu_seconds) == (Status.STOPPED, "not needed", 3.0)


@pytest.mark.parametrize(
    ("kinds", "failures", "preemptions"),
    [
        ((ExitKind.EXCEPTION, ExitKind.STOPPED), 1, 0),
        ((ExitKind.EXITED, ExitKind.LOST), 0, 1),
        ((ExitKind.STOPPED, ExitKind.LOST), 0, 1),
    ],
)
def test_a_lost_replica_explains_the_failures_of_the_others(
    kinds: tuple[ExitKind, ...], failures: int, preemptions: int
) -> None:
    again = attempts.ended(running(replicas=2, max_retries_failure=1), left(*kinds), 9.0)
    assert (again.status, again.attempt) == (Status.GATHERING, 2)
    assert (again.failures, again.preemptions) == (failures, preemptions)


def test_attempts_that_are_lost_again_and_again_count_as_a_failure() -> None:
    job = running()
    for _ in range(attempts.SETTINGS.host_killer_limit - 1):
        job = attempts.ended(job, left(ExitKind.LOST), 9.0)
        job = attempts.started(job, attempts.nowhere(job.spec), 10.0)
    job = attempts.ended(job, left(ExitKind.LOST), 11.0)
    assert (job.status, job.failures) == (Status.FAILED, 1)
