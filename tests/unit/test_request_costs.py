"""The requests of a job and of an idle agent, counted exactly, since they are the bill."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from fray.cli.job_filter import JobFilter
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.claimer import IDLE_POLL
from fray_agents.agent.membership import BEATS_PER_CHECK
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core, open_core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs import notifications, pending_index
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.protocol import role_lease
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.metering import GCS_PRICES, RequestCounts
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, DoctorKeys, MachineKeys, PoolKeys
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    Holding,
    JobRecord,
    MachineRecord,
    ProvisioningSpec,
    ReconcilerRecord,
    Resources,
)
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import fake
from tests.support.gcs_emulator import Emulator
from tests.support.memory_provider import MemoryProvider
from tests.support.scripted_agents import job_now, join, launch
from tests.support.servers import gcs_emulator
from tests.support.virtual import Cluster, StoreConnection

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
CALM = 300.0
"""Virtual seconds until an agent that found nothing looks as rarely as it ever will."""

OWN_LIST = "pending/default/"
BELL = "pools/default/doorbell"


async def _cloud_core(cluster: Cluster) -> tuple[Core, StoreConnection]:
    """A participant whose requests cost money."""
    return await cluster.core(local=False), cluster.connections[-1]


async def _price(cluster: Cluster, tmp_path: Path, with_parent: bool = False, **task: Any) -> tuple[int, int]:
    """(writes and lists, reads) that one job costs client, agent and pass together.

    Everything counts that names the job, the rings of the doorbell and the reads that hear them, and the agent's
    listings until the job has ended. Not counted: what the cluster asks without the job too.
    """
    client, client_connection = await _cloud_core(cluster)
    core, agent_connection = await _cloud_core(cluster)
    start = fake(tmp_path, {"parent": 1e9, "job": 0.2}, **task)
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=start))
    running = asyncio.create_task(agent.run())
    parent = await _submit(client, name="parent") if with_parent else ""
    await asyncio.sleep(CALM)
    agent_connection.asked.clear()
    while ("list", OWN_LIST) not in agent_connection.asked:  # noqa: ASYNC110  then the next repair is far away
        await asyncio.sleep(0.1)
    client_connection.asked.clear()
    agent_connection.asked.clear()
    job = await _submit(client, parent=parent)
    await wait_for(client, [job])
    lists = agent_connection.asked.count(("list", OWN_LIST))
    await asyncio.sleep(CALM)
    asked = client_connection.asked + agent_connection.asked
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


async def test_archiving_a_job_costs_one_write_two_reads_and_no_listing(cluster: Cluster) -> None:
    core, connection = await _cloud_core(cluster)
    agent = await join(cluster, "a")
    for _ in range(5):
        job = await launch(core)
        await agent.end(await agent.claim())
        await pending_index.delete_entry(core, entry_of(job))
    await asyncio.sleep(2 * 3600.0)
    repair = Repair(core, Admission(core))
    connection.asked.clear()
    await repair.run({})
    await repair.archive.run()
    asked = Counter((verb, key.partition("/")[0]) for verb, key in connection.asked)
    asked = Counter({one: count for one, count in asked.items() if one[1] in ("jobs", "archive") and one[0] != "list"})
    assert asked == {("get", "jobs"): 10, ("put", "archive"): 5, ("delete", "jobs"): 5}
    assert connection.asked.count(("list", "jobs/")) == 1


@pytest.mark.parametrize(
    ("chosen", "limit", "least"),
    [
        pytest.param(JobFilter(), None, 300, marks=pytest.mark.slow),
        (JobFilter(), 20, 20),
        (JobFilter(name="job7"), None, 1),
        pytest.param(JobFilter(name="job?"), 5, 5, marks=pytest.mark.slow),
        (JobFilter(user="u0"), 5, 6),
    ],
)
async def test_a_list_of_jobs_reads_little_more_than_what_it_shows(
    cluster: Cluster, chosen: JobFilter, limit: int | None, least: int
) -> None:
    core, connection = await _cloud_core(cluster)
    for number in range(300):
        await _submit(core, name=f"job{number}", user=f"u{number % 2}")
        await asyncio.sleep(1.0)
    connection.asked.clear()
    found = await chosen.find(core, {}, limit=limit)
    reads = sum(verb.startswith("get") and key.startswith("jobs/") for verb, key in connection.asked)
    assert reads <= 2 * least if chosen.user else reads <= 1.3 * least
    every = await chosen.find(core, {})
    assert [job.id for job in found.jobs] == [job.id for job in every.jobs][-limit if limit else None :]


@pytest.mark.parametrize(("chosen", "limit"), [(JobFilter(), 20), (JobFilter(name="job?"), 5)])
async def test_a_list_with_a_limit_of_ended_and_archived_jobs_reads_little_more_than_what_it_shows(
    cluster: Cluster, chosen: JobFilter, limit: int
) -> None:
    core, connection = await _cloud_core(cluster)
    agent = await join(cluster, "a")
    for number in range(60):
        job = await launch(core, name=f"job{number}", id="mine" if number == 4 else "")
        await agent.end(await agent.claim())
        await pending_index.delete_entry(core, entry_of(job))
        await asyncio.sleep(1.0)
        if number == 55:
            await asyncio.sleep(2 * 3600.0)
            repair = Repair(core, Admission(core))
            await repair.run({})
            await repair.archive.run()
    assert [len(cluster.keys(area)) for area in ("jobs/", "archive/")] == [4, 56]
    connection.asked.clear()
    found = await chosen.find(core, {}, ended=True, limit=limit)
    reads = sum(verb.startswith("get") and key.startswith(("jobs/", "archive/")) for verb, key in connection.asked)
    assert reads <= 1.3 * limit
    every = await chosen.find(core, {}, ended=True)
    assert [job.id for job in found.jobs] == [job.id for job in every.jobs][-limit:]


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
    second, connection = await _cloud_core(cluster)
    running = [asyncio.create_task(holder.run())]
    await asyncio.sleep(1)
    idle = Agent(second, AgentOptions(capacity=HOST, work_dir=tmp_path))
    running.append(asyncio.create_task(idle.run()))
    await asyncio.sleep(CALM)
    connection.asked.clear()
    await asyncio.sleep(hour)
    asked = list(connection.asked)
    for agent in (holder, idle):
        agent.terminate()
    await asyncio.gather(*running)
    settings_beats = hour / 60
    puts = [key for verb, key in asked if verb == "put"]
    lists = [key for verb, key in asked if verb == "list"]
    assert set(lists) == {"pending/default/"}
    assert len(lists) <= settings_beats / 8 * 1.3
    assert all(key.startswith("agents/") or key == DoctorKeys.conditions for key in puts)
    assert puts.count(DoctorKeys.conditions) <= settings_beats / BEATS_PER_CHECK + 1
    assert len(puts) == pytest.approx(settings_beats * (1 + 1 / BEATS_PER_CHECK), abs=2)
    reads = {key for verb, key in asked if verb in ("get", "get_if_changed")}
    assert reads <= {"pools/default/doorbell", "pools/default/plan.json", "coordinator/reconciler.json"}
    plans = sum(key == "pools/default/plan.json" and verb != "unchanged" for verb, key in asked)
    assert plans == pytest.approx(settings_beats, abs=10), "one each repair interval"


async def test_a_wait_on_a_cluster_whose_agents_people_start_reads_no_scaler_record(cluster: Cluster) -> None:
    client, connection = await _cloud_core(cluster)
    job = await _submit(client)
    connection.asked.clear()
    begun: list[None] = []
    with pytest.raises(TimeoutError):
        await wait_for(client, [job], 600.0, on_progress=lambda progress: None, on_machines=partial(begun.append, None))
    assert begun == []
    reads = {key for verb, key in connection.asked if verb in ("get", "get_if_changed")}
    assert reads == {f"jobs/{job}.json", "pools/default/pool.json"}
    assert (
        connection.asked.count(("get", "pools/default/pool.json")) == connection.asked.count(("list", "agents/")) == 5
    )


async def test_a_run_of_the_scaler_lists_each_pool_twice_and_reads_changed_objects(cluster: Cluster) -> None:
    core, connection = await _cloud_core(cluster)
    pools = {pool: await _pool_of_machines(core, pool, 2) for pool in ("one", "two", "three")}

    async def opened(core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        return pools[pool]

    scaler = Scaler(core, "scaler", ScalingScope(named=frozenset(pools)), opened)
    assert await scaler.run_if_elected()
    connection.asked.clear()
    assert await scaler.run_if_elected()
    idle = sorted(connection.asked)
    lease = "coordinator/scaler.json"
    assert idle == sorted(
        [("get_if_changed", lease), ("unchanged", lease), ("put", lease), ("get_if_changed", "placements/bell")]
        + [("list", "pools/"), ("list", "machines/"), ("list", "agents/")]
        + [("get", f"pools/{pool}/pool.json") for pool in pools]
        + [("list", f"{folder}/{pool}/") for pool in pools for folder in ("machines", "pending")]
    )
    connection.asked.clear()
    await core.records.change(AgentKeys.key("one-0"), AgentRecord, lambda agent: replace(agent, beat=1))
    job = await _submit(core, pool="two")
    connection.asked.clear()
    assert await scaler.run_if_elected()
    more = Counter(connection.asked) - Counter(idle)
    assert more == {("get", "agents/one-0.json"): 1, ("get", f"jobs/{job}.json"): 1}


async def _pool_of_machines(core: Core, pool: str, count: int) -> MemoryProvider:
    """A pool with as many machines as it may have, which are up and have work."""
    provider = MemoryProvider()
    spec = ProvisioningSpec(provider="command", max=count, hourly_cost=1.0, capacity=HOST)
    await core.records.put(PoolKeys.record(pool), AgentPoolRecord(provisioning=spec), ABSENT)
    for number in range(count):
        name = f"{pool}-{number}"
        held = {f"job-{name}": Holding(attempt=1, phase="running")}
        agent = AgentRecord(id=name, host="h", pool=pool, machine=name, interval=60.0, capacity=HOST, holdings=held)
        await core.records.put(AgentKeys.key(name), agent, ABSENT)
        machine = MachineRecord(pool=pool, name=name, state="up", provider="command", batch=name)
        machine = replace(machine, created_at=core.now(), billed_at=core.now(), up_at=core.now())
        await core.records.put(MachineKeys.key(pool, name), machine, ABSENT)
        provider.machines[name] = ListedMachine(pool, name, "", ListedState.READY, batch=name)
    return provider


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


@pytest.mark.parametrize(
    ("agents", "least"), [(1, 2.0), pytest.param(10, 4.0, marks=pytest.mark.slow)], ids=["one agent", "ten agents"]
)
async def test_a_quiet_cluster_costs_at_most_a_third_more_than_the_least_a_month(
    cluster: Cluster, tmp_path: Path, agents: int, least: float
) -> None:
    running = []
    for number in range(agents):
        core, _ = await _cloud_core(cluster)
        (tmp_path / str(number)).mkdir()
        options = AgentOptions(capacity=HOST, work_dir=tmp_path / str(number))
        running.append(asyncio.create_task(Agent(core, options).run()))
    await asyncio.sleep(4 * CALM)
    for connection in cluster.connections:
        connection.asked.clear()
    await asyncio.sleep(3600.0)
    verbs = Counter(verb for connection in cluster.connections for verb, _ in connection.asked)
    counts = RequestCounts(
        writes=verbs["put"], lists=verbs["list"], reads=verbs["get"] + verbs["get_if_changed"], deletes=0
    )
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    hours = 720
    assert counts.cost(GCS_PRICES) * hours <= 1.3 * least


@pytest.mark.parametrize(
    "doomed", ["the-holder", *(pytest.param(agent, marks=pytest.mark.slow) for agent in ("another", "a-new-one"))]
)
async def test_a_death_is_noticed_as_soon_if_the_cluster_was_quiet_before(
    cluster: Cluster, tmp_path: Path, doomed: str
) -> None:
    """The agent claims and dies right after a pass that was to be the last for a minute."""
    user, _ = await _cloud_core(cluster)
    running: dict[str, asyncio.Task[Any]] = {}

    async def start(pool: str) -> Agent:
        (tmp_path / pool).mkdir()
        core, _ = await _cloud_core(cluster)
        fakes = fake(tmp_path / pool, {"job": 1e6})
        agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path / pool, start_task=fakes, pool=pool))
        running[pool] = asyncio.create_task(agent.run())
        return agent

    agents = {"the-holder": await start("the-holder")}
    await asyncio.sleep(30)
    agents["another"] = await start("another")
    await asyncio.sleep(4 * CALM)
    await _next_pass(user)
    job = await _submit(user, pool=doomed)
    if doomed in agents:
        agents[doomed].look_for_work()
    else:
        await start(doomed)
    await _until(user, job, lambda record: record.status == "running")
    begun = cluster.clock.boottime()
    running[doomed].cancel()
    await _until(user, job, lambda record: record.attempt == 2)
    took = cluster.clock.boottime() - begun
    for task in running.values():
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)
    assert took < 60


async def test_the_holder_promises_frequent_passes_before_its_claim_is_sent(cluster: Cluster, tmp_path: Path) -> None:
    user, _ = await _cloud_core(cluster)
    core, _ = await _cloud_core(cluster)
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path))
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(4 * CALM)
    await _next_pass(user)
    await agent.member.end_quiet()
    lease = record_of(await user.records.read(CoordinatorKeys.reconciler, ReconcilerRecord))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert lease is not None
    assert lease.interval == 0.0


async def test_a_job_whose_ring_was_lost_in_a_quiet_cluster_starts_after_the_next_pass(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, _ = await _cloud_core(cluster)
    core, _ = await _cloud_core(cluster)
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 1.0})))
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(4 * CALM)
    await _next_pass(user)
    with monkeypatch.context() as lost:
        lost.setattr(notifications, "ring_bell", AsyncMock())
        job = await _submit(user)
    begun = cluster.clock.boottime()
    await _until(user, job, lambda record: record.status == "running")
    took = cluster.clock.boottime() - begun
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert 40 < took < 1.2 * (60 + IDLE_POLL)


async def test_a_cluster_is_quiet_again_after_a_pass_in_which_the_index_could_not_be_listed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, _ = await _cloud_core(cluster)
    core, _ = await _cloud_core(cluster)
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path))
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(4 * CALM)
    with monkeypatch.context() as odd:
        odd.setattr(Repair, "look_at_index", look := AsyncMock(side_effect=BadRecord("pending/ cannot be listed")))
        await asyncio.sleep(90)
    assert look.await_count
    await asyncio.sleep(4 * CALM)
    lease = record_of(await user.records.read(CoordinatorKeys.reconciler, ReconcilerRecord))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert lease is not None
    assert (lease.problems, role_lease.is_quiet(lease, user.settings)) == ({}, True)


async def _next_pass(user: Core) -> None:
    """Wait for the end of a pass after which the next one is a minute away."""
    before = None
    while True:
        lease = record_of(await user.records.read(CoordinatorKeys.reconciler, ReconcilerRecord))
        assert lease is not None
        if before not in (None, lease.progress) and lease.interval > user.settings.pass_interval:
            return
        before = lease.progress
        await asyncio.sleep(0.5)


async def _until(user: Core, job: str, holds: Callable[[JobRecord], bool]) -> None:
    while not holds(await job_now(user, job)):  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.5)
