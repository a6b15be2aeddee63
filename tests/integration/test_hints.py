"""Hints to agents: what they would find out later, at once. Settings under which later means after the test."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fray.cluster import StorageCluster, agent_hints
from fray.types import Entrypoint, JobRequest, JobStatus
from fray_coordinator.core import LOCAL_SETTINGS, Core, open_core
from fray_layouts.object_keys import CoordinatorKeys
from fray_layouts.records import HintEndpoint, ReconcilerRecord
from fray_rpc import RpcKey, Target, connect
from fray_rpc.errors import NotAuthentic
from tests.support.agents import agents
from tests.support.waiting import wait_until

SELDOM = replace(LOCAL_SETTINGS, poll_interval=600.0, beat_interval=60.0, idle_beat_interval=60.0, pass_interval=0.2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StorageCluster]:
    """One agent that looks around every ten minutes, and that the pass knows."""
    root = str(tmp_path / "root")
    asyncio.run(_make(root))
    with agents(root, tmp_path / "work"), StorageCluster(root) as opened:
        wait_until(lambda: hint_endpoints(opened))
        yield opened


async def _make(root: str) -> None:
    await (await open_core(root, SELDOM)).store.close()


def hint_endpoints(cluster: StorageCluster) -> list[HintEndpoint]:
    async def read(core: Core) -> list[HintEndpoint]:
        found = await core.records.read(CoordinatorKeys.reconciler, ReconcilerRecord)
        pools = found.record.pools if found is not None else {}
        return pools["default"].hint_endpoints if "default" in pools else []

    return cluster.run(read)


def status_becomes(cluster: StorageCluster, job: str, wanted: JobStatus) -> None:
    wait_until(lambda: cluster.poll(job).status is wanted)


def test_submitted_jobs_start_and_stopped_jobs_end_at_once(cluster: StorageCluster) -> None:
    job = cluster.launch(JobRequest("job", Entrypoint.from_binary("sleep", ["300"])))
    status_becomes(cluster, job, JobStatus.RUNNING)
    cluster.terminate(job)
    status_becomes(cluster, job, JobStatus.STOPPED)


def test_a_gang_is_gathered_started_and_stopped_by_hints_alone(cluster: StorageCluster) -> None:
    gang = JobRequest("gang", Entrypoint.from_binary("sleep", ["300"]), replicas=2)
    job = cluster.launch(gang)
    status_becomes(cluster, job, JobStatus.RUNNING)
    cluster.terminate(job)
    status_becomes(cluster, job, JobStatus.STOPPED)


def test_only_a_reader_of_the_cluster_may_hint(cluster: StorageCluster) -> None:
    class Stranger:
        encrypted = False

        def keys(self, fresh: bool = False) -> list[RpcKey]:
            return [RpcKey("made-up", bytes(32))]

    [hint_endpoint] = hint_endpoints(cluster)
    with pytest.raises(NotAuthentic):
        connect(Target("agent", hint_endpoint.address, identity=hint_endpoint.nonce), Stranger())


@pytest.mark.slow
def test_a_client_that_found_no_agents_to_hint_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_hints, "NO_TARGETS_TTL", 0.0)
    root, job = str(tmp_path / "root"), JobRequest("job", Entrypoint.from_binary("true"))
    asyncio.run(_make(root))
    with StorageCluster(root) as cluster:
        first = cluster.launch(job)
        with agents(root, tmp_path / "work"):
            status_becomes(cluster, first, JobStatus.SUCCEEDED)
            wait_until(lambda: hint_endpoints(cluster))
            status_becomes(cluster, cluster.launch(job), JobStatus.SUCCEEDED)


async def test_a_program_that_ends_before_its_hints_have_left_says_nothing() -> None:
    async def told_at_the_end() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    sender = agent_hints.HintSender(lambda: pytest.fail("nobody is called"))
    sender._begin(told_at_the_end())
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(others)
    del others
    gc.collect()
    assert unheard == []
