"""A dead or frozen agent leaves no task behind. Here the agent is a process of its own that starts a task and fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import is_alive
from tests.support.tasks import (
    STUBBORN,
    boottime,
    pids_in,
)
from tests.support.waiting import eventually

AGENT = """
import asyncio, sys
from pathlib import Path
from fray_agents.tasks.process_task import ProcessTask
from tests.support.tasks import FAR, sh

async def main():
    task = await ProcessTask.start(sh(Path(sys.argv[1]), sys.argv[2], grace=FAR), float(sys.argv[3]), None)
    print(task.runner_pid, flush=True)

    def renew():
        task.set_deadline(float(sys.stdin.readline()))
        print("renewed", flush=True)

    asyncio.get_running_loop().add_reader(sys.stdin, renew)
    end = await task.exit
    print(end.exit.kind, flush=True)

asyncio.run(main())
"""


class Agent:
    """The process, its runner's pid, and its other output."""

    def __init__(self, directory: Path, deadline: float, script: str = STUBBORN) -> None:
        arguments = [sys.executable, "-c", AGENT, str(directory), script, str(deadline)]
        folder = Path(__file__).parents[2]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=folder)
        self.runner = int(self.line())

    def renew(self, deadline: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{deadline}\n")
        assert self.line() == "renewed"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    started: list[Agent] = []
    yield started
    for agent in started:
        with agent.process:
            agent.process.kill()


async def all_gone(pids: list[int]) -> None:
    await eventually(lambda: not any(map(is_alive, pids)))


def test_a_killed_agents_tasks_end_at_once(tmp_path: Path, agents: list[Agent]) -> None:
    agents.append(Agent(tmp_path, boottime() + 600))
    pids = asyncio.run(pids_in(tmp_path / "work/pids", 4))
    assert all(map(is_alive, pids))
    agents[0].process.kill()
    asyncio.run(all_gone([*pids, agents[0].runner]))


def test_a_frozen_agents_tasks_end_at_the_deadline_and_it_learns_so(tmp_path: Path, agents: list[Agent]) -> None:
    agents.append(Agent(tmp_path, boottime() + 600))
    pids = asyncio.run(pids_in(tmp_path / "work/pids", 4))
    assert all(map(is_alive, pids))
    deadline = boottime() + 1.0
    agents[0].renew(deadline)
    os.kill(agents[0].process.pid, signal.SIGSTOP)
    asyncio.run(all_gone(pids))
    assert boottime() >= deadline
    os.kill(agents[0].process.pid, signal.SIGCONT)
    assert agents[0].line() == "preempted"  # whether or not the agent is still trusted, it was not the job's failure


def test_a_task_dies_with_its_runner_when_its_agent_cannot_help(tmp_path: Path, agents: list[Agent]) -> None:
    agents.append(Agent(tmp_path, boottime() + 600, "echo $$ > pids; while :; do sleep 0.05; done"))
    pids = asyncio.run(pids_in(tmp_path / "work/pids", 1))
    os.kill(agents[0].process.pid, signal.SIGSTOP)
    os.kill(agents[0].runner, signal.SIGKILL)
    asyncio.run(all_gone(pids))
