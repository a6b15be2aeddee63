"""Typical mistakes in programs, each with the full text that a person gets for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fray import (
    Entrypoint,
    InvalidInput,
    JobFailed,
    JobRequest,
    LocalCluster,
    ResourceConfig,
    StorageClient,
    StorageCluster,
)
from fray.errors import ActorUnavailableError
from fray.pool import WorkerPool
from fray.queue import MemoryQueue
from tests.support.messages import normalized
from tests.support.waiting import wait_until


def train(steps: int = 1) -> int:
    return 2 * steps


def job(*args: Any, **more: Any) -> JobRequest:
    return JobRequest("train", *args, **more)


class Counter:
    def __init__(self, weights: str = "") -> None:
        self.weights = Path(weights).read_text() if weights else ""


def launch_in_a_thread(_: StorageCluster) -> None:
    with LocalCluster(use_processes=False) as cluster:
        cluster.launch(train)  # type: ignore[arg-type]


def use_a_pool_that_was_shut_down(nobody: StorageCluster) -> None:
    with WorkerPool(nobody, 1) as pool:
        pass
    pool.submit(train)


def acknowledge_twice(nobody: StorageCluster) -> None:
    queue = MemoryQueue[int]()
    queue.push(1)
    lease = queue.pop()
    assert lease is not None
    lease.done()
    lease.done()


WRITTEN: list[tuple[Callable[[StorageCluster], object], str]] = [
    (
        lambda c: c.launch(job(Entrypoint.from_callable(train(3)))),  # type: ignore[arg-type]
        "InvalidInput: entrypoint.callable: 6 is not accepted; give the function itself, and its arguments by args=: "
        "from_callable(train, args=(3,))",
    ),
    (
        lambda c: c.launch(job("python train.py")),
        "InvalidInput: entrypoint: 'python train.py' is not accepted; give a function, "
        "Entrypoint.from_callable(function, args=(...)) or Entrypoint.from_binary(program, [...])",
    ),
    (
        lambda c: c.launch(job(Entrypoint.from_binary("echo", "hello"))),
        "InvalidInput: entrypoint.args: 'hello' is not accepted; give a list, even of one argument: args=[\"value\"]",
    ),
    (
        lambda c: c.launch(job(Entrypoint.from_callable(train, args=(threading.Lock(),)))),
        "InvalidInput: entrypoint.args[0]: <unlocked _thread.lock object at 0x> is not accepted; it cannot be pickled "
        "(cannot pickle '_thread.lock' object); make it inside the job instead",
    ),
    (
        lambda c: c.launch(job(train, {"cpu": 2})),
        "InvalidInput: resources: {'cpu': 2} is not accepted; give a ResourceConfig",
    ),
    (
        lambda c: c.launch(job(train, ResourceConfig(ram="lots"))),
        "InvalidInput: resources.memory: 'lots' is not accepted; give bytes, or a size such as 512MiB or 2GB",
    ),
    (
        lambda c: StorageCluster("gs:/bucket/fray").list_jobs(),
        "InvalidInput: root: 'gs:/bucket/fray' is not accepted; use gs://bucket/prefix, s3://bucket/prefix, "
        "file:///path, a plain path, or memory://name",
    ),
    (
        lambda c: c.poll("nothing"),
        "JobNotFound: there is no job nothing under memory://messages; `fray ps --all` lists those that exist",
    ),
    *(
        (
            mistake,
            "InvalidInput: request: <function train at 0x> is not accepted; give a JobRequest: "
            'JobRequest("name", Entrypoint.from_callable(train))',
        )
        for mistake in (
            lambda c: c.launch(train),
            lambda c: StorageClient(c).submit(train),  # type: ignore[arg-type]
            launch_in_a_thread,
        )
    ),
    (
        lambda c: c.launch(Entrypoint.from_binary("ls")),  # type: ignore[arg-type]
        "InvalidInput: request: BinaryEntrypoint(command='ls', args=()) is not accepted; give a JobRequest: "
        'JobRequest("name", Entrypoint.from_binary(program, [...]))',
    ),
    (
        lambda c: c.launch([]),  # type: ignore[arg-type]
        "InvalidInput: request: [] is not accepted; give one JobRequest; launch_many launches several",
    ),
    (
        lambda c: c.launch_many(7),  # type: ignore[arg-type]
        "InvalidInput: requests: 7 is not accepted; give a list of JobRequests; launch(request) launches one",
    ),
    (
        lambda c: c.launch_many([job(train), 7]),  # type: ignore[list-item]
        "InvalidInput: requests[1]: 7 is not accepted; give a JobRequest: "
        'JobRequest("name", Entrypoint.from_callable(function))',
    ),
    (
        lambda c: c.poll([]),  # type: ignore[arg-type]
        "InvalidInput: job_id: [] is not accepted; give the id of one job, as launch returned it",
    ),
    (
        lambda c: c.wait([7]),  # type: ignore[list-item]
        "InvalidInput: job_id[0]: 7 is not accepted; give the id of one job, as launch returned it",
    ),
    (
        lambda c: WorkerPool(2),  # type: ignore[arg-type]
        "InvalidInput: cluster: 2 is not accepted; a number of workers is num_workers=..., a cluster is "
        "LocalCluster() or StorageCluster(root)",
    ),
    (
        lambda c: MemoryQueue[int]().done(1),  # type: ignore[arg-type]
        "InvalidInput: lease: 1 is not accepted; give the lease that pop returned (not its item), or a list of leases",
    ),
    (use_a_pool_that_was_shut_down, "PoolClosed: pool worker-0x was shut down; make another one"),
    (
        acknowledge_twice,
        "UnknownLease: lease 0x: The lease was done or released before, ran out, was purged, or is not of this "
        "queue; its item is unchanged.",
    ),
]
"""What is written in Python, on a cluster without agents."""


@pytest.mark.parametrize(("mistake", "message"), WRITTEN)
def test_a_mistake_in_a_program_gets_its_message(mistake: Callable[[StorageCluster], object], message: str) -> None:
    with StorageCluster("memory://messages") as nobody, pytest.raises(Exception) as raised:  # noqa: PT011 its text is
        mistake(nobody)
    assert normalized(f"{type(raised.value).__name__}: {raised.value}") == message


def test_an_argument_that_is_no_id_is_refused() -> None:
    with StorageCluster("memory://messages") as nobody:
        launched = nobody.launch(job(train))
        given = [job(train), nobody.poll(launched), StorageClient(nobody).submit(job(train))]
        ways: list[Callable[[Any], object]] = [
            *(nobody.wait, nobody.poll, nobody.result, nobody.logs, nobody.usage, nobody.terminate),
            lambda job: nobody.wait([launched, job]),
            lambda job: asyncio.run(nobody.wait_async(job)),
        ]
        remedies = set()
        for way in ways:
            for value in given:
                with pytest.raises(InvalidInput, match=r"^job_id(\[1\])?: ") as raised:
                    way(value)
                remedies.add(raised.value.remedy)
    assert remedies == {
        "launch it first, and give the id that launch returns",
        "give its id: JobInfo.job_id",
        "give its id: JobHandle.job_id",
    }


def test_a_time_out_names_the_awaited_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        "fray_coordinator.jobs.waiting",
        "fray_coordinator.jobs.waiting",
        "fray.actor.caller",
        "fray.pool.diagnosis",
    ):
        monkeypatch.setattr(f"{module}.WARN_AFTER", 0.1)
    nobody_there = "no live agent in pool default; start one with `fray agent --pool default`"
    with StorageCluster("memory://messages") as nobody:
        launched, client = nobody.launch(job(train)), StorageClient(nobody)
        future = client.create_actor(Counter, name="counter").count.remote()
        task = WorkerPool(nobody, 1).submit(train)

        def told_by(wait: Callable[..., object]) -> str:
            """The error, after the reason was added that the cluster looks for during a wait."""
            return wait_until(lambda: said if nobody_there in (said := normalized(str(error_of(wait)))) else None)

        def error_of(wait: Callable[..., object]) -> BaseException:
            with pytest.raises(TimeoutError) as raised:
                wait(timeout=1)
            return raised.value

        with ThreadPoolExecutor() as threads:
            ended = list(threads.map(told_by, [partial(nobody.wait, launched), future.result, task.result]))
        for job_id in [info.job_id for info in nobody.list_jobs()]:
            nobody.terminate(job_id)
        assert isinstance(future.exception(200), ActorUnavailableError)
    assert ended == [
        f"0 of 1 jobs done, 1 waiting after 1 s (train-ID): {nobody_there}",
        f"no result after 1 s: actor 'counter' (counter-0-ID) has not started: {nobody_there}",
        f"no result after 1 s: 0 of 1 tasks done, 0 of 1 workers up (1 pending ({nobody_there}))",
    ]


def test_an_error_of_a_job_or_actor_arrives_with_its_remedy() -> None:
    def imports() -> None:
        import numpyy  # type: ignore[import-not-found]  # noqa: F401

    with LocalCluster() as cluster:
        with pytest.raises(JobFailed) as failed:
            cluster.result(cluster.launch(job(imports)))
        with pytest.raises(Exception) as ended:  # noqa: PT011
            StorageClient(cluster).create_actor(Counter, "nowhere/weights", name="counter").count()
    first, *_, last = normalized(str(failed.value)).splitlines()
    assert first == "job train-ID failed at attempt 1: exception: ModuleNotFoundError: No module named 'numpyy'"
    assert last == (
        "module 'numpyy' is missing here: if it belongs to the project, send that with the job by "
        '--workspace . or EnvironmentConfig(workspace="auto"); if it belongs to a package, name that by --with or '
        "pip_packages= (a private cluster has what is installed here)"
    )
    first, *_ = normalized(str(ended.value)).splitlines()
    assert first == (
        "actor 'counter' (counter-0-ID) has ended: job counter-0-ID failed at attempt 1: exception: FileNotFoundError: "
        "[Errno 2] No such file or directory: 'nowhere/weights'"
    )
