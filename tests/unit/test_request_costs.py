"""What a job and an idle agent ask of the storage, counted: these figures are exact, and they are the bill."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_layouts.records import Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import fake
from tests.support.gcs_emulator import Emulator
from tests.support.servers import gcs_emulator
from tests.support.virtual import Cluster, Way

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
CALM = 300.0
"""Virtual seconds until an agent that found nothing looks as rarely as it ever will."""

OWN_LIST = "pending/default/"
BELL = "pools/default/doorbell"


async def _cloud_core(cluster: Cluster) -> tuple[Core, Way]:
    """A participant whose requests cost money."""
    return await cluster.core(local=False), cluster.ways[-1]


async def _price(cluster: Cluster, tmp_path: Path, with_parent: bool = False, **task: Any) -> tuple[int, int]:
    """(writes and lists, reads) that one job costs client, agent and pass together.

    Everything counts that names the job, the rings of the doorbell and the reads that hear them, and the agent's
    listings until the job has ended. Not counted: what the cluster asks without the job too.
    """
    client, client_way = await _cloud_core(cluster)
    core, agent_way = await _cloud_core(cluster)
    start = fake(tmp_path, {"parent": 1e9, "job": 0.2}, **task)
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=start))
    running = asyncio.create_task(agent.run())
    parent = await _submit(client, name="parent") if with_parent else ""
    await asyncio.sleep(CALM)
    agent_way.asked.clear()
    while ("list", OWN_LIST) not in agent_way.asked:  # noqa: ASYNC110  then the next repair is far away
        await asyncio.sleep(0.1)
    client_way.asked.clear()
    agent_way.asked.clear()
    job = await _submit(client, parent=parent)
    await wait_for(client, [job])
    lists = agent_way.asked.count(("list", OWN_LIST))
    await asyncio.sleep(CALM)
    asked = client_way.asked + agent_way.asked
    agent.terminate()
    await running
    return _writes(asked, job) + lists, _reads(asked, job)


def _writes(asked: list[tuple[str, str]], job: str) -> int:
    return sum(verb == "put" and (job in key or key == BELL) for verb, key in asked)


def _reads(asked: list[tuple[str, str]], job: str) -> int:
    of_the_job = sum(verb in ("get", "get_if_changed") and job in key for verb, key in asked) + asked.count(
        ("get", BELL)
    )
    bells_heard = asked.count(("get_if_changed", BELL)) - asked.count(("unchanged", BELL))
    return of_the_job + bells_heard


async def _submit(core: Core, **fields: Any) -> str:
    spec = parse_spec({"name": "job", "entrypoint": {"command": ["true"]}, **fields})
    (submitted,) = await submit(core, [spec], 1 if spec.parent else None)
    return submitted.job.id


async def test_a_small_job_costs_seven_writes_and_lists_and_at_most_eight_reads(
    cluster: Cluster, tmp_path: Path
) -> None:
    writes_and_lists, reads = await _price(cluster, tmp_path, output=b"hello\n")
    assert writes_and_lists == 7  # entry, record, bell; list, claim; log, commit
    assert reads <= 8


async def test_a_silent_job_costs_one_write_less(cluster: Cluster, tmp_path: Path) -> None:
    assert (await _price(cluster, tmp_path))[0] == 6


@pytest.mark.parametrize(("size", "more"), [(64 * 1024, 0), (64 * 1024 + 1, 1)])
async def test_a_result_over_64_kib_costs_one_write_more(
    cluster: Cluster, tmp_path: Path, size: int, more: int
) -> None:
    assert (await _price(cluster, tmp_path, result=bytes(size)))[0] == 6 + more


async def test_a_child_costs_one_write_more(cluster: Cluster, tmp_path: Path) -> None:
    assert (await _price(cluster, tmp_path, with_parent=True))[0] == 6 + 1


async def test_an_idle_agent_asks_for_its_beats_its_doorbell_and_the_repairs_lists(
    cluster: Cluster, tmp_path: Path
) -> None:
    hour = 3600.0
    first, _ = await _cloud_core(cluster)
    holder = Agent(first, AgentOptions(capacity=HOST, work_dir=tmp_path))
    second, way = await _cloud_core(cluster)
    running = [asyncio.create_task(holder.run())]
    await asyncio.sleep(1)
    idle = Agent(second, AgentOptions(capacity=HOST, work_dir=tmp_path))
    running.append(asyncio.create_task(idle.run()))
    await asyncio.sleep(CALM)
    way.asked.clear()
    await asyncio.sleep(hour)
    asked = list(way.asked)
    for agent in (holder, idle):
        agent.terminate()
    await asyncio.gather(*running)
    settings_beats = hour / 60
    puts = [key for verb, key in asked if verb == "put"]
    lists = [key for verb, key in asked if verb == "list"]
    assert set(lists) == {"pending/default/"}
    assert len(lists) <= settings_beats + 1
    assert all(key.startswith("agents/") for key in puts)
    assert len(puts) == pytest.approx(settings_beats, abs=2)
    reads = {key for verb, key in asked if verb in ("get", "get_if_changed")}
    assert reads <= {"pools/default/doorbell", "pools/default/plan.json", "coordinator/reconciler.json"}
    plans = sum(key == "pools/default/plan.json" and verb != "unchanged" for verb, key in asked)
    assert plans == pytest.approx(settings_beats, abs=10), "one each repair interval"


async def test_opening_a_cluster_costs_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = Emulator()
    with gcs_emulator(emulator) as server:
        monkeypatch.setenv(server.address, server.url)
        await (await open_core(server.root)).store.close()
        emulator.asked.clear()
        core = await open_core(server.root, create=False)
        assert abs(core.now() - time.time()) < 60
        await core.store.close()
    assert emulator.asked == {"GET": 1}
