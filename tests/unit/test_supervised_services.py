"""What serves others goes on, or gives the reason, after an exception where none was expected."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fray.actor import CheckpointConfig
from fray.actor.checkpointing import restore
from fray.actor.running_actor import CurrentActor
from fray.cluster import JobRequest, LocalCluster, StorageCluster
from fray.cluster.current_job import CurrentJob
from fray.pool import PoolClosed, WorkerPool, worker_supervisor
from fray.pool.worker_supervisor import WorkerSupervisor
from fray_agents.agent.claimer import Claimer
from fray_agents.agent.membership import Heartbeat
from fray_agents.tasks import process_task
from fray_agents.tasks.process_task import ProcessTask
from fray_layouts.records import Resources
from fray_rpc import CallId, RpcServer, Target, connect
from fray_rpc.server import connection
from tests.support.members import trusted_member
from tests.support.rpc import Keys, Subject
from tests.support.scripted_agents import launch
from tests.support.tasks import FAR, boottime, sh
from tests.support.virtual import Cluster
from tests.support.waiting import PATIENCE


async def fail_async(*args: object, **options: object) -> Any:
    raise LookupError("not expected")


def fail(*args: object, **options: object) -> Any:
    raise LookupError("not expected")


async def test_a_claim_that_nobody_resolves_ends_its_agent(cluster: Cluster) -> None:
    core = await cluster.core(local=False)
    await launch(core)
    fatal: asyncio.Queue[BaseException] = asyncio.Queue()
    claimer = Claimer(
        trusted_member(core, Resources(cpu=4000, memory=2**33, disk=2**33)), fail_async, print, fatal.put_nowait
    )
    running = asyncio.create_task(claimer.run())
    assert str(await fatal.get()) == "not expected"
    running.cancel()


async def test_a_task_whose_end_cannot_be_watched_ends_as_the_hosts_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_task, "end_leftovers", fail_async)
    task = await ProcessTask.start(sh(tmp_path, "sleep 1000"), boottime() + FAR, None)
    task._process.kill()  # the runner is gone without a word
    end = (await asyncio.wait_for(task.exit, PATIENCE)).exit
    assert end.kind == "host-failed"
    assert "not expected" in end.message


def test_a_response_is_sent_although_no_thread_can_be_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    subject = Subject()
    server = RpcServer(Keys())
    server.add("subject", subject, max_concurrency=2)
    server.start()
    channel = connect(Target("subject", server.address), Keys())
    calls = [channel.start("subject", "meet", (2,), {}) for _ in range(2)]  # two threads serve from now on
    assert all(call.result(PATIENCE) for call in calls)
    monkeypatch.setattr(connection, "start_thread", no_thread)
    monkeypatch.setattr(connection, "LARGE_BODY", 0)
    waiting = channel.start("subject", "wait", (), {})
    channel.start("subject", "open", (), {})
    assert waiting.result(PATIENCE)
    server.close()


def test_a_pool_whose_workers_nobody_looks_after_any_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_supervisor, "create_actors", lambda *args: SimpleNamespace(jobs=()))
    monkeypatch.setattr(WorkerSupervisor, "_supervise", fail)
    with LocalCluster(use_processes=False) as local:
        pool = WorkerPool(local, 1)
        with pytest.raises(PoolClosed, match="not expected"):
            pool.submit(len, "abc").result(PATIENCE)
        pool.shutdown(wait=False)


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_an_actor_whose_state_cannot_be_kept_fails_instead_of_leaving_its_callers_waiting(
    tmp_path: Path,
) -> None:
    storage = StorageCluster(str(tmp_path / "root"))
    actor = CurrentActor(None, 0, "kept")  # type: ignore[arg-type]
    mine = CurrentJob(storage.root, "kept-0-1", 1, "space", "/nowhere")
    policy = CheckpointConfig(replies=True)
    _, journal = restore(storage, mine, policy, actor, Unpicklable, Unpicklable)
    with pytest.raises(TypeError, match="lock"):
        journal.applied(CallId("client", 1), b"outcome", 0)
    assert actor.shutdown_event.is_set()
    assert isinstance(actor.failure, TypeError)


def test_a_local_cluster_goes_on_after_its_agent_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = Heartbeat.run, iter([True])

    async def run(self: Heartbeat) -> None:
        if next(failures, False):
            raise LookupError("not expected")
        await real(self)

    monkeypatch.setattr(Heartbeat, "run", run)
    with LocalCluster(use_processes=False) as local:
        assert local.result(local.launch(JobRequest("job", lambda: 7)), PATIENCE) == 7
