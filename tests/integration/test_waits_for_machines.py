"""A client that waits for machines makes them if nobody else does, so an empty cluster starts by itself."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray.pool import WorkerPool
from fray.types import Entrypoint, JobRequest
from fray_agents.host.capacity import host_name
from fray_agents.provisioning.providers import local
from fray_coordinator.core import Core
from fray_coordinator.jobs import waiting
from fray_coordinator.jobs.lookup import live_agents, read_agents
from fray_coordinator.jobs.pools import change_pool, read_scaler
from fray_layouts.records import AgentPoolRecord, ProvisioningSpec, Resources, ScalerRecord
from tests.support import actors
from tests.support.agents import on_cluster
from tests.support.shell import Shell
from tests.support.waiting import wait_until


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A root without an agent, whose jobs may have one machine, a process here. The process is killed at the end.

    This process and its commands are in a folder whose fray.yaml describes the pool.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    allow(root, 1)
    yield Shell(root)
    for lock in tmp_path.glob(f"fray-{os.geteuid()}/machines/*/host-*.lock"):
        if local._is_held(lock):
            with suppress(ProcessLookupError):
                os.kill(int(lock.read_text()), signal.SIGKILL)


def allow(root: Path, machines: int) -> None:
    spec = ProvisioningSpec(
        provider="local", zones=[host_name()], max=machines, capacity=Resources(cpu=4000, memory=2**32, disk=2**32)
    )
    (root.parent / "fray.yaml").write_text(
        f"pools: {{default: {{provider: local, max: {machines}, capacity: {{cpu: 4, memory: 4GiB, disk: 4GiB}}}}}}"
    )
    record = AgentPoolRecord(provisioning=spec)
    on_cluster(root, lambda core: change_pool(core, "default", lambda before: record))


def last_run(root: Path) -> ScalerRecord:
    return on_cluster(root, read_scaler) or ScalerRecord()


def has_run(root: Path) -> bool:
    """Whether a scaler has looked at the pool."""
    return "default" in last_run(root).pools


def agents(root: Path) -> list[str]:
    """The live agents, each on a machine."""

    async def read(core: Core) -> list[str]:
        return [agent.machine for agent in live_agents(await read_agents(core, {}), core.now())]

    return on_cluster(root, read)


def test_fray_run_starts_a_cluster_in_which_nothing_runs_and_fray_down_ends_it(shell: Shell) -> None:
    ran = shell.start("run", "--", "sh", "-c", "echo hello", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = ran.communicate(timeout=200)
    assert (ran.returncode, out) == (0, "hello\n"), err
    assert "its pool may have machines" in err
    assert not last_run(shell.root).holder.startswith("wait-"), "the role is given back"
    assert len(agents(shell.root)) == 1, "the machine goes on"
    ended = shell.start("down", "--wait", "200", stdout=subprocess.PIPE)
    assert "no machine is left" in ended.communicate(timeout=250)[0]
    assert agents(shell.root) == []
    assert last_run(shell.root).holder == ""


def test_ctrl_c_gives_the_role_back(shell: Shell) -> None:
    allow(shell.root, 0)
    ran = shell.start("run", "--", "true", stderr=subprocess.PIPE)
    wait_until(lambda: has_run(shell.root))
    assert last_run(shell.root).holder.startswith("wait-")
    ran.send_signal(signal.SIGINT)
    _, err = ran.communicate(timeout=200)
    assert ran.returncode == 130, err
    assert last_run(shell.root).holder == ""


def a_job(client: StorageClient) -> Callable[[], object]:
    return client.submit(JobRequest("j", Entrypoint.from_binary("true"))).wait


def a_jobs_log(client: StorageClient) -> Callable[[], object]:
    job = client.submit(JobRequest("j", Entrypoint.from_binary("true")))
    return lambda: client.cluster.monitor(job.job_id)


def an_actors_call(client: StorageClient) -> Callable[[], object]:
    return client.create_actor(actors.Counter, name="it").add.remote(1).result


def a_group(client: StorageClient) -> Callable[[], object]:
    return client.create_actor_group(actors.Counter, name="it", count=2).wait_ready


def a_pool(client: StorageClient) -> Callable[[], object]:
    def work() -> None:
        with WorkerPool(client.cluster, 1) as pool:
            pool.submit(max, 1, 2).result()

    return work


@pytest.mark.parametrize("made", [a_job, a_jobs_log, an_actors_call, a_group, a_pool])
def test_every_wait_for_machines_takes_the_role_and_gives_it_back(
    made: Callable[[StorageClient], Callable[[], object]], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (waiting, waiting):
        monkeypatch.setattr(module, "WARN_AFTER", 0.1)
    monkeypatch.setattr("fray.pool.diagnosis.WARN_AFTER", 0.1)
    allow(shell.root, 0)
    cluster = StorageCluster(str(shell.root))
    with ThreadPoolExecutor(1) as thread:
        wait = thread.submit(made(StorageClient(cluster)))
        wait_until(lambda: has_run(shell.root))
        assert last_run(shell.root).holder.startswith("wait-")
        for job in cluster.list_jobs():
            cluster.terminate(job.job_id)
        with suppress(Exception):  # the job that was waited for has been stopped
            wait.result(200)
    wait_until(lambda: last_run(shell.root).holder == "")
    cluster.close()
