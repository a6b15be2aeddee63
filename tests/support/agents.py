"""Real agent processes for the tests, and functions that wait for their work."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from fray_coordinator.core import LOCAL_SETTINGS, Core, open_core
from fray_coordinator.jobs.submission import submit
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, ClusterSettings, JobRecord
from fray_layouts.spec_parsing import parse_spec
from tests.support.waiting import PATIENCE, eventually

T = TypeVar("T")

QUICK = replace(LOCAL_SETTINGS, idle_beat_interval=5.0, pass_interval=0.5, repair_interval=2.0)
"""An agent may stand still for 15 seconds before it loses its jobs, because on a busy machine it does for some
seconds."""

MORTAL = replace(QUICK, beat_interval=1.0, idle_beat_interval=1.0)
"""Agents are declared dead after five seconds of silence; for tests of agents that stand still."""

_AGENT = """
import asyncio, sys
from pathlib import Path
from fray_agents.agent.agent import AgentOptions
from fray_agents.agent.daemon import run_agent
from fray_layouts.records import Resources
capacity = Resources(cpu=int(sys.argv[3]), memory=2**33, disk=2**33)
options = AgentOptions(capacity=capacity, work_dir=Path(sys.argv[2]), pool=sys.argv[4])
asyncio.run(run_agent(sys.argv[1], options, on_join=lambda name: print(name, flush=True)))
"""


class AgentProcess:
    """An agent in a process of its own. id: its first id."""

    def __init__(self, root: str, work_dir: Path, cores: float = 2, pool: str = "default") -> None:
        command = [sys.executable, "-c", _AGENT, root, str(work_dir), str(int(cores * 1000)), pool]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.id = self.process.stdout.readline().strip()
        assert self.id, "the agent ended before it joined"

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Send SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        return self.process.wait(200)


@contextlib.contextmanager
def agents(root: str, work_dir: Path, count: int = 1, cores: float = 2) -> Iterator[list[AgentProcess]]:
    """Start `count` agent processes; end them at the end of the block."""
    running: list[AgentProcess] = []
    try:
        for _ in range(count):
            running.append(AgentProcess(root, work_dir, cores))  # noqa: PERF401  one that fails to start ends the others
        yield running
    finally:
        for agent in running:
            if agent.process.poll() is None:
                agent.send(signal.SIGCONT)
                agent.kill()


async def launch(core: Core, code: str | list[str], **fields: Any) -> str:
    """Submit a Python program (or a command) as a job; returns its id."""
    command = [sys.executable, "-c", code] if isinstance(code, str) else code
    spec = {"name": "job", "entrypoint": {"command": command}, "grace": 2.0, **fields}
    (submitted,) = await submit(core, [parse_spec(spec)])
    return submitted.job.id


async def job(core: Core, job_id: str) -> JobRecord:
    found = await core.records.read(JobKeys.key(job_id), JobRecord)
    assert found is not None
    return found.record


async def ended(core: Core, job_id: str, within: float = PATIENCE) -> JobRecord:
    """Wait until the job has ended; return its record."""

    async def look() -> JobRecord | None:
        record = await job(core, job_id)
        return record if record.status in ("succeeded", "failed", "stopped") else None

    return await eventually(look, within)


async def running(core: Core, job_id: str, attempt: int = 1) -> JobRecord:
    """Wait until the attempt runs; return the job's record."""

    async def look() -> JobRecord | None:
        record = await job(core, job_id)
        return record if record.status == "running" and record.attempt == attempt else None

    return await eventually(look)


async def agent_record(core: Core, agent_id: str) -> AgentRecord:
    """Wait until the agent has joined, which is after it prints its id; return its record."""
    return (await eventually(lambda: core.records.read(AgentKeys.key(agent_id), AgentRecord))).record


def lines(path: Path) -> list[str]:
    """The lines of a file that jobs append to; none if it does not exist."""
    return path.read_text().splitlines() if path.exists() else []


@contextlib.asynccontextmanager
async def quick_core(root: Path | str, settings: ClusterSettings = QUICK) -> AsyncIterator[Core]:
    """A participant of a root with quick settings."""
    core = await open_core(str(root), settings)
    try:
        yield core
    finally:
        await core.store.close()


def on_cluster(root: Path | str, act: Callable[[Core], Awaitable[T]], settings: ClusterSettings = QUICK) -> T:
    """Run `act` with a core on a root with quick settings."""

    async def run() -> T:
        async with quick_core(root, settings) as core:
            return await act(core)

    return asyncio.run(run())
