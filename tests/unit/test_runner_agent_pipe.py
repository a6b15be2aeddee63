"""The runner's messages to the agent: complete, in order, and never blocking."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from fray_agents.runner.agent_pipe import AgentPipe

REQUEST: dict[str, Any] = {
    "directory": "/d",
    "command": ["true"],
    "stdin": "",
    "is_call": False,
    "env": {"A": "1"},
    "secrets": [],
    "python_path": [],
    "preamble": "",
    "cwd": "",
    "timeout": None,
    "grace": 1.0,
    "deadline": 2.0,
    "result_limit": 3,
    "spool_limit": 4,
    "seal_interval": 5.0,
    "limits": {"memory": 4},
    "lock_fd": None,
    "oom_counter": "",
    "in_container": False,
}


class Agent:
    """The agent's ends of both pipes."""

    def __init__(self) -> None:
        inlet, self.to_runner = os.pipe()
        self.from_runner, outlet = os.pipe()
        self.pipe = AgentPipe(inlet, outlet)

    def say(self, text: str) -> None:
        os.write(self.to_runner, text.encode())

    def hear(self) -> list[dict[str, Any]]:
        """All messages of the runner, read from the pipe as it makes room."""
        heard = b""
        os.set_blocking(self.from_runner, False)
        while self.pipe.congested:
            heard += os.read(self.from_runner, 1 << 16)
            self.pipe.flush()
        heard += os.read(self.from_runner, 1 << 17)
        return [json.loads(line) for line in heard.splitlines()]


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    for fd in (made.pipe.inlet, made.pipe.outlet):
        os.close(fd)


def test_a_request_and_the_bytes_right_behind_it_are_kept_apart(agent: Agent) -> None:
    agent.say(json.dumps(REQUEST) + '\n{"deadline": 5}\n{"ki')
    request = agent.pipe.start_request()
    assert request is not None
    assert (request.command, request.deadline, request.path("log")) == (["true"], 2.0, "/d/log")
    assert agent.pipe.messages() == [{"deadline": 5}]
    agent.say('ll": true}\n')
    assert agent.pipe.messages() == [{"kill": True}]
    assert agent.pipe.messages() == []
    assert not agent.pipe.closed


def test_an_agent_that_ends_before_its_request_is_complete(agent: Agent) -> None:
    agent.say('{"command"')
    os.close(agent.to_runner)
    assert agent.pipe.start_request() is None


def test_the_agents_end_is_noticed(agent: Agent) -> None:
    agent.say(json.dumps(REQUEST) + "\n")
    agent.pipe.start_request()
    os.close(agent.to_runner)
    assert agent.pipe.messages() == []
    assert agent.pipe.closed


def test_sending_to_an_agent_that_ended_closes_the_pipe(agent: Agent) -> None:
    os.close(agent.from_runner)
    agent.pipe.send("chunk", number=1)
    assert agent.pipe.closed
    assert not agent.pipe.congested


def test_an_agent_that_reads_nothing_holds_up_nothing_and_misses_nothing(agent: Agent) -> None:
    for number in range(10_000):
        agent.pipe.send("chunk", number=number)
    assert agent.pipe.congested
    assert agent.hear() == [{"event": "chunk", "number": number} for number in range(10_000)]
