"""The client for development: behaviour that only threads of one process can have."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import wait_line
from fray.client import wait_all
from fray.cluster import ClusterResolver, StorageCluster
from fray.cluster.current import storage_cluster
from fray.current_client import current_client, set_current_client
from fray.local_backend import LocalClient
from fray.types import ActorConfig, CheckpointConfig, Entrypoint, JobRequest, JobStatus, ResourceConfig
from fray_coordinator.jobs import waiting
from fray_coordinator.jobs.lookup import all_jobs
from fray_rpc.errors import RemoteError
from tests.support import actors
from tests.support.waiting import wait_until


def call(name: str, fn: object, *args: object, **fields: object) -> JobRequest:
    return JobRequest(name, Entrypoint.from_callable(fn, args), **fields)  # type: ignore[arg-type]


class Knowing:
    """Reports which client it works with."""

    def client(self) -> object:
        return current_client()


class Collecting:
    def __init__(self, into: list[int]) -> None:
        self.into = into

    def add(self, number: int) -> None:
        self.into.append(number)


class Refusing:
    def __init__(self) -> None:
        raise KeyError("mine")


def test_actors_of_a_local_client_are_ready_or_have_failed_when_they_are_there() -> None:
    local, seen = LocalClient(max_threads=1), [1]
    local.create_actor(Collecting, seen, name="collecting").add(2)
    assert seen == [1, 2]
    group = local.create_actor_group(Collecting, seen, name="several", count=3)
    assert group.ready_count == 3, "more than there are threads for jobs"
    assert local.submit(call("beside", int)).wait(timeout=200) is JobStatus.SUCCEEDED
    with pytest.raises(KeyError, match="mine"):
        local.create_actor_group(Refusing, name="refusing", count=2)
    local.shutdown(wait=False)


def test_jobs_of_a_local_client_are_known_by_the_names_of_their_functions_and_actors() -> None:
    local = LocalClient()
    local.create_actor(Collecting, [], name="collecting")
    local.submit(call("largest", max, 1, 2)).wait(timeout=200)
    records = local.cluster.run(lambda core: all_jobs(core, {}))
    local.shutdown(wait=False)
    calls = [job.spec.entrypoint.callable for job in records]
    assert {call.name for call in calls if call is not None} == {f"actor {__name__}.Collecting", "builtins.max"}


class Slow:
    def __init__(self, gate: threading.Event) -> None:
        gate.wait(200)

    def ready(self) -> bool:
        return True


def test_a_creation_that_waits_for_an_init_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    local, gate = LocalClient(), threading.Event()
    caplog.set_level(logging.INFO, "fray")
    for module in (waiting, waiting):
        monkeypatch.setattr(module, "WARN_AFTER", 0.0)
    monkeypatch.setattr(wait_line, "_RENEWAL", 0.02)
    monkeypatch.setattr(wait_line, "_LOG_PAUSES", (0.05, 1.0))
    with ThreadPoolExecutor(1) as thread:
        created = thread.submit(lambda: local.create_actor(Slow, gate, name="slow"))
        wait_until(lambda: "0 of 1 actors of 'slow' serve calls (jobs: 1 running)" in caplog.text)
        gate.set()
        assert created.result(200).ready()
    local.shutdown(wait=False)


def test_only_unpicklable_arguments_are_passed_by_reference_within_a_local_client() -> None:
    local, event, mine = LocalClient(), threading.Event(), [1]
    holder = local.create_actor(actors.Holder, name="holder")
    assert holder.take.remote(event).result(timeout=200) == 1, "before there is a connection"
    assert (holder.take(event=event), holder.take.remote(event).result(timeout=200), holder.take(mine)) == (2, 3, 4)
    lock = holder.give()
    assert lock is holder.give.remote().result(timeout=200)
    assert holder.give() is lock
    *themselves, copy = holder.give_all.stream()
    assert [id(one) for one in themselves] == [id(lock), *[id(event)] * 3]
    assert copy == mine
    assert copy is not mine
    pool = ClusterResolver(local.cluster).lookup("holder")
    assert pool.take.remote(event).result(timeout=200) == 5
    assert pool.take(event) == 6
    durable = ActorConfig(checkpoint=CheckpointConfig(replies=True))
    lasting = local.create_actor(Lasting, name="lasting", actor_config=durable)
    with pytest.raises(RemoteError, match="cannot be pickled"):
        lasting.give.remote().result(timeout=200)
    local.shutdown(wait=False)


class Lasting(actors.Holder):
    def __checkpoint__(self) -> None:
        return None

    def __restore__(self, state: None) -> None:
        pass


def test_a_client_that_an_actor_returns_is_the_processs_own() -> None:
    local = LocalClient(max_threads=4)
    actor = local.create_actor(Knowing, name="knowing")
    assert actor.client() is local
    assert pickle.loads(pickle.dumps(local.cluster)) is local.cluster
    local.shutdown(wait=False)


def test_threads_look_at_no_devices_and_run_all_replicas() -> None:
    local = LocalClient()
    ran: list[str] = []
    assert isinstance(current_client(), LocalClient)
    with set_current_client(local):
        slices = ResourceConfig.with_tpu("v5litepod-16", slice_count=4, container_profile="gvisor")
        request = call("tpu", ran.append, "here", resources=slices, max_task_failures=1, processes_per_task=2)
        job = current_client().submit(request)
    assert local.cluster.results(job.job_id, timeout=200) == [None] * 16
    assert ran == ["here"] * 16
    assert os.environ.get("FRAY_JOB_ID") is None
    waiting = local.submit(call("last", time.sleep, 0.2))
    local.shutdown()
    assert not Path(local.cluster.root.removeprefix("file://")).exists(), waiting


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageCluster]:
    """The current cluster of a program that has just begun."""
    monkeypatch.setattr("fray.cluster.current._clusters", {})
    monkeypatch.setattr("fray.current_client._default", None)
    with storage_cluster() as made:
        yield made


def test_without_a_root_the_client_and_the_cluster_are_one_private_cluster_of_threads_and_processes(
    cluster: StorageCluster,
) -> None:
    client, lock = current_client(), threading.Lock()
    seen: list[object] = []

    def in_thread(own: object) -> tuple[object, bool]:
        current_client().submit(call("child", seen.append, own)).wait()
        return current_client() is client, seen[0] is lock

    thread = client.submit(call("thread", in_thread, lock))
    process = cluster.launch(call("process", lambda: (os.getpid(), type(current_client()).__name__)))
    assert client.cluster.result(thread.job_id) == (True, True)
    pid, kind = cluster.result(process)
    assert pid != os.getpid()
    assert kind == "StorageClient"
    assert client.cluster.list_jobs() == cluster.list_jobs()
    assert {"thread", "child", "process"} <= {info.name for info in cluster.list_jobs()}
    counter = client.create_actor(actors.Counter, name="one-cluster")
    assert counter.pid() == os.getpid()
    assert cluster.result(cluster.launch(call("caller", lambda counter: counter.add(), counter))) == 1
    assert counter.add() == 2
    for one in (client, client.cluster, cluster):
        assert pickle.loads(pickle.dumps(one)) is one
    together = threading.Barrier(12)  # more than there are slots for processes
    meeting = [client.submit(call(f"meeting-{number}", together.wait, 200)) for number in range(together.parties)]
    assert wait_all(meeting, timeout=200) == [JobStatus.SUCCEEDED] * together.parties


class Interrupted:
    def interrupt(self) -> None:
        assert self.in_main_thread()
        signal.raise_signal(signal.SIGINT)  # as Ctrl-C does while a method runs in the thread of its caller

    def in_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()


def test_ctrl_c_within_a_call_interrupts_the_program_and_not_the_actor() -> None:
    local = LocalClient()
    actor = local.create_actor(Interrupted, name="interrupted")
    wait_until(actor.in_main_thread)
    with pytest.raises(KeyboardInterrupt):
        actor.interrupt()
    assert actor.in_main_thread()
    local.shutdown(wait=False)
