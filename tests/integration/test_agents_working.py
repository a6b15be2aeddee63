"""Agents and their jobs while nobody dies: logs, limits, children, unfit hosts, storage that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fray_agents.agent.agent import Agent, AgentOptions, ExitReason
from fray_agents.tasks.task_handle import StartFailed, TaskHandle, TaskSpec
from fray_coordinator.clock import SystemClock, system_random
from fray_coordinator.core import Core, core_on
from fray_coordinator.jobs import stopping
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS
from fray_coordinator.store.interface import Unknown
from fray_coordinator.store.local import LocalBackend
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, ClusterSettings, JobRecord, Resources
from fray_layouts.work_keys import WorkKeys
from tests.support import actors
from tests.support.agents import (
    MORTAL,
    QUICK,
    AgentProcess,
    agent_record,
    ended,
    job,
    launch,
    lines,
    quick_core,
    running,
)
from tests.support.processes import is_alive
from tests.support.waiting import PATIENCE, eventually

HOST = Resources(cpu=2000, memory=2**33, disk=2**33)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, AgentProcess]]:
    """A root with an agent, for tests that need no particular agent."""
    folder = tmp_path_factory.mktemp("shared")
    with actors.storage(folder, count=1) as (_, (started,)):
        yield folder / "root", started


@pytest.fixture
async def core(shared: tuple[Path, AgentProcess]) -> AsyncIterator[Core]:
    """A participant of the root that tests share."""
    async with quick_core(shared[0]) as opened:
        yield opened


@pytest.fixture
def agent(shared: tuple[Path, AgentProcess]) -> AgentProcess:
    """The agent of the root that tests share."""
    return shared[1]


@contextlib.asynccontextmanager
async def embedded(core: Core, tmp_path: Path, **options: Any) -> AsyncIterator[Agent]:
    """An agent in this process."""
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path / "work", **options))
    run = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent.terminate()
        agent.terminate()
        await run


async def test_logs_can_be_read_while_the_job_runs(core: Core) -> None:
    job_id = await launch(core, "import time\nprint('early', flush=True)\ntime.sleep(600)")

    async def shipped() -> bytes | None:
        chunk = await core.store.get(WorkKeys.log(job_id, 1, 0, 1))
        return chunk.data if chunk else None

    chunk = await eventually(shipped)
    assert chunk.endswith(b" stdout F early\n")
    assert (await job(core, job_id)).status == "running"
    await stopping.stop(core, job_id, "seen enough")
    record = await ended(core, job_id)
    assert record.exit is not None
    assert record.exit.log_chunks == 1


async def test_the_heartbeat_and_the_exit_record_state_the_usage_of_a_task(
    agent: AgentProcess, core: Core, tmp_path: Path
) -> None:
    code = f"""
import pathlib, time
hoard = bytearray(80_000_000)
while time.process_time() < 0.6: pass
while not pathlib.Path({str(tmp_path / "go")!r}).exists(): time.sleep(0.02)
"""

    job_id = await launch(core, code)

    async def sampled() -> bool:
        holding = (await agent_record(core, agent.id)).holdings.get(job_id)
        return holding is not None and holding.usage is not None and holding.usage.memory > 80_000_000

    await eventually(sampled)
    (tmp_path / "go").touch()
    record = await ended(core, job_id)
    assert record.exit is not None
    assert record.exit.usage is not None
    assert record.exit.usage.memory_peak > 80_000_000
    assert record.exit.usage.cpu_seconds > 0.5


async def test_a_job_that_uses_more_memory_than_it_asked_for_fails_and_is_told_so(core: Core) -> None:
    code = "import time\nhoard = bytearray(300_000_000)\ntime.sleep(600)"
    record = await ended(core, await launch(core, code, resources={"memory": 100 * 10**6}))
    assert record.status == "failed"
    assert record.exit is not None
    assert record.exit.kind == "out-of-memory"
    assert "its limit of 100 MB" in record.exit.message


async def test_a_failing_job_is_tried_again_and_its_history_kept(core: Core) -> None:
    code = "import os, sys\nsys.exit(0 if os.environ['FRAY_ATTEMPT'] == '3' else 7)"

    job_id = await launch(core, code, max_retries_failure=2)
    record = await ended(core, job_id)
    assert (record.status, record.attempt, record.failures, record.preemptions) == ("succeeded", 3, 2, 0)
    assert [(past.attempt, past.exit.kind, past.exit.code) for past in record.history] == [
        (1, "exited", 7),
        (2, "exited", 7),
    ]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"entrypoint": {"command": ["no-such-program"]}}, "exited"),
        ({"entrypoint": {"command": ["sleep", "600"]}, "timeout": 0.3}, "timeout"),
        ({"entrypoint": {"callable": {"pickle": "bm90IGEgcGlja2xl"}}}, "exception"),
        ({"entrypoint": {"callable": {"blob": "blobs/2026-01/gone"}}}, "exception"),
        ({"entrypoint": {"command": ["sh", "-c", "kill -SEGV $$"]}}, "signalled"),
    ],
)
async def test_each_way_to_fail_has_its_own_reason(core: Core, fields: dict[str, Any], kind: str) -> None:
    job_id = await launch(core, "", **fields)
    record = await ended(core, job_id)
    assert record.status == "failed"
    assert record.exit is not None
    assert (record.exit.kind, bool(record.exit.message)) == (kind, True)


async def test_a_large_result_has_an_object_of_its_own(core: Core) -> None:
    code = "import os, pathlib\npathlib.Path(os.environ['FRAY_RESULT']).write_bytes(bytes(100_000))"

    record = await ended(core, await launch(core, code))
    assert record.result is not None
    assert (record.result.encoding, record.result.size) == ("bytes", 100_000)
    stored = await core.store.get(record.result.key)
    assert stored is not None
    assert stored.data == bytes(100_000)


async def test_the_end_of_a_parent_ends_its_children(core: Core, tmp_path: Path) -> None:
    parent = await launch(core, "import time; time.sleep(600)")
    await running(core, parent)
    code = "import os, pathlib, sys, time\npathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\ntime.sleep(600)"
    command = ["python3", "-c", code, str(tmp_path / "pid")]
    child = await launch(core, command, parent=parent)
    stays = await launch(core, command, parent=parent, detached=True)
    await running(core, child)
    await running(core, stays)
    await stopping.stop(core, parent, "enough")
    record = await ended(core, child)
    assert record.status == "stopped"
    assert record.exit is not None
    assert record.exit.message.startswith(f"its parent {parent} no longer runs: it has ended, or was silent")
    assert (await job(core, stays)).status == "running"
    await stopping.stop(core, stays, "enough")
    await ended(core, stays)


async def test_failing_its_health_check_ends_an_attempt_as_a_failure(core: Core) -> None:
    with socket.socket() as bound:  # so that nobody else listens there
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        check = {"path": "/health", "port": port, "interval": 0.2, "timeout": 1.0, "grace": 0.0, "failures": 2}
        record = await ended(core, await launch(core, "import time; time.sleep(600)", health_check=check))
    assert (record.status, record.failures) == ("failed", 1)
    assert record.exit is not None
    assert record.exit.kind == "unhealthy"
    assert str(port) in record.exit.message


async def test_a_host_that_cannot_start_tasks_stops_claiming_and_others_run_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        raise StartFailed("no room left on this host")

    async with quick_core(tmp_path / "root") as core:
        monkeypatch.setattr(socket, "gethostname", lambda: "sick-host")
        async with embedded(core, tmp_path, start_task=broken) as sick:
            jobs = [await launch(core, "pass") for _ in range(6)]

            async def gave_up() -> bool:
                found = await core.records.read(AgentKeys.key(sick.id), AgentRecord)
                return found is not None and "could not be started" in found.record.problem

            await eventually(gave_up)
            monkeypatch.setattr(socket, "gethostname", lambda: "good-host")
            async with embedded(core, tmp_path):
                records = [await ended(core, job_id) for job_id in jobs]
            limit = core.settings.start_failure_limit  # two run at once here, and one more may have been on its way
            assert limit <= sum(record.start_failures for record in records) <= limit + 1
            assert {(record.status, record.failures, record.preemptions) for record in records} == {("succeeded", 0, 0)}


class Outage(LocalBackend):
    """Local files that do not answer while `down` is set.

    Attributes:
        requests: number of requests that were not answered.
    """

    down = False
    requests = 0

    def __getattribute__(self, name: str) -> Any:
        if name in ("get", "get_if_changed", "put", "delete", "withdraw", "list") and type(self).down:
            return _no_answer
        return super().__getattribute__(name)


async def _no_answer(*_: object, **__: object) -> Any:
    Outage.requests += 1
    raise Unknown("the network is away")


async def _core_with_outages(tmp_path: Path, outage_grace: float, settings: ClusterSettings = QUICK) -> Core:
    rng = system_random()
    store = Store(Outage(tmp_path / "root", SystemClock()), SystemClock(), rng, patience=0.5)
    return await core_on(store, replace(settings, outage_grace=outage_grace), SystemClock(), rng)


@pytest.fixture(autouse=True)
def _no_outage() -> None:
    Outage.down, Outage.requests = False, 0


WAITS = """
import pathlib, time, sys
folder = pathlib.Path(sys.argv[1])
with open(folder / "effects", "a") as file: file.write("begin\\n")
while not (folder / "go").exists(): time.sleep(0.02)
with open(folder / "effects", "a") as file: file.write("end\\n")
"""


async def _outage_until(condition: Any) -> None:
    Outage.down = True
    try:
        await eventually(condition)
    finally:
        Outage.down = False


@pytest.mark.slow
async def test_an_outage_kills_nobody_and_the_work_goes_on(tmp_path: Path) -> None:
    core = await _core_with_outages(tmp_path, outage_grace=600)
    async with embedded(core, tmp_path) as agent:
        async with embedded(await _core_with_outages(tmp_path, 600), tmp_path) as other:
            job_id = await launch(core, ["python3", "-c", WAITS, str(tmp_path)])
            await running(core, job_id)
            began = core.clock.boottime()

            async def long_enough() -> bool:
                return core.clock.boottime() - began > (DEATH_INTERVALS + 1) * core.settings.beat_interval

            await _outage_until(long_enough)
            assert lines(tmp_path / "effects") == ["begin"]
            (tmp_path / "go").touch()
            record = await ended(core, job_id)
            assert (record.status, record.attempt, record.history) == ("succeeded", 1, [])
            for name in (agent.id, other.id):
                assert (await agent_record(core, name)).state == "live"


@pytest.mark.slow
async def test_an_outage_longer_than_the_grace_ends_the_work_as_a_preemption(tmp_path: Path) -> None:
    core = await _core_with_outages(tmp_path, 1, MORTAL)
    async with embedded(core, tmp_path):
        code = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
        code += "time.sleep(600 if os.environ['FRAY_ATTEMPT'] == '1' else 0)"
        job_id = await launch(core, ["python3", "-c", code, str(tmp_path / "pid")])

        async def begun() -> int | None:
            pid = (lines(tmp_path / "pid") or [""])[0]
            return int(pid) if pid else None

        pid = await eventually(begun)

        async def gone() -> bool:
            return not is_alive(pid)

        await _outage_until(gone)
        record: JobRecord = await ended(core, job_id)
        assert (record.status, record.attempt, record.failures, record.preemptions) == ("succeeded", 2, 0, 1)


async def test_a_second_sigterm_ends_an_agent_whose_store_does_not_answer(tmp_path: Path) -> None:
    core = await _core_with_outages(tmp_path, outage_grace=600)
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path / "work"))
    running_agent = asyncio.create_task(agent.run())
    job_id = await launch(core, "import time; time.sleep(600)")
    await running(core, job_id)
    Outage.down = True
    agent.terminate()
    agent.terminate()
    await asyncio.wait_for(running_agent, PATIENCE)
    Outage.down = False
    assert (await job(core, job_id)).status == "running"  # the reaper will requeue it


async def test_an_agent_that_cannot_join_can_be_told_to_leave(tmp_path: Path) -> None:
    core = await _core_with_outages(tmp_path, outage_grace=600)
    Outage.down = True
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=tmp_path / "work"))
    running_agent = asyncio.create_task(agent.run())
    await eventually(lambda: Outage.requests)
    agent.terminate()
    assert await asyncio.wait_for(running_agent, PATIENCE) is ExitReason.LEFT
