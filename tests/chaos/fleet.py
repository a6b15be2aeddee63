"""The hosts and agents of a chaos run: real `fray agent` processes, each host with a temporary directory of its own.

An agent's working directory, and the lock that shows whether it lives, are in the temporary directory. So several hosts
on one machine know as little of each other as real ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.disks import may_mount

FRAY = Path(sys.executable).with_name("fray")
MARK = "FRAYCHAOS"
CORES = 6
REFUSALS = ("it is a copy of that", "can carry no cluster, as `fray doctor` says")
"""What an agent says that rightly refuses to join: another cluster is there, or the storage's answers are wrong."""


@dataclass(slots=True)
class AgentProcess:
    """One agent process. busy: whether a fault is being applied to it."""

    host: Path
    process: subprocess.Popen[bytes]
    log: Path
    busy: bool = False

    @property
    def ids(self) -> list[str]:
        """The ids under which it has joined; the last one is its current id."""
        told = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [json.loads(line)["agent"] for line in told]

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def joined(self) -> None:
        """Wait until it has joined, or has ended, or a minute has passed."""
        deadline = time.monotonic() + 60
        while True:
            if self.ids or not self.runs or time.monotonic() > deadline:
                return
            await asyncio.sleep(0.1)

    async def gone(self, within: float) -> int:
        """Wait for its exit code; kill it if it takes longer."""
        try:
            return await asyncio.to_thread(self.process.wait, within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return await asyncio.to_thread(self.process.wait)


@dataclass(slots=True)
class Fleet:
    """All agents of a run. environment: variables for the storage. mark: is in the environment of all descendants."""

    root: str
    folder: Path
    environment: dict[str, str]
    mark: str
    agents: list[AgentProcess] = field(default_factory=list)
    _started: int = 0

    def start(self, host: Path | None = None) -> AgentProcess:
        """Start an agent on an earlier host, or on a new one."""
        self._started += 1
        host = host or self.new_host()
        log = self.folder / f"agent{self._started}.log"
        command = [*_as_host(host.name), str(FRAY), "agent", "--json", "--root", self.root, "--cpu", str(CORES)]
        environment = {**os.environ, **self.environment, "TMPDIR": str(host), MARK: self.mark}
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        agent = AgentProcess(host, process, log)
        self.agents.append(agent)
        return agent

    def new_host(self) -> Path:
        host = self.folder / f"host{sum(1 for _ in self.folder.glob('host*'))}"
        host.mkdir()
        return host

    def living(self) -> list[AgentProcess]:
        """Agents that have joined and run."""
        return [agent for agent in self.agents if agent.runs and agent.ids]

    def idle(self) -> list[AgentProcess]:
        """Living agents to which no fault is being applied."""
        return [agent for agent in self.living() if not agent.busy]

    def find(self, agent_id: str) -> AgentProcess | None:
        """The process with this agent id."""
        return next((agent for agent in self.agents if agent_id in agent.ids[-1:]), None)

    async def leave(self) -> list[int]:
        """Send SIGTERM to all; return their exit codes."""
        running = [agent for agent in self.agents if agent.runs]
        for agent in running:
            agent.send(signal.SIGCONT)
            await agent.joined()
            agent.send(signal.SIGTERM)
        return list(await asyncio.gather(*(agent.gone(60) for agent in running)))

    def kill(self) -> None:
        """Kill all processes that still run, even if they should not exist."""
        for agent in self.agents:
            if agent.runs:
                agent.process.kill()
                agent.process.wait()
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def troubles(self) -> list[str]:
        """Tracebacks in logs, and agents that neither left when told, nor were killed, nor refused rightly."""
        return [
            f"{agent.log.name}: exit code {agent.process.returncode}: {text[-3000:]}"
            for agent in self.agents
            if "Traceback" in (text := agent.log.read_text())
            or agent.process.returncode not in (0, -signal.SIGKILL, *((1,) if _refused(text) else ()))
        ]


def _refused(text: str) -> bool:
    return any(words in text for words in REFUSALS)


def _as_host(name: str) -> list[str]:
    """The prefix with which a command sees a host with this name, if this user may do that.

    Without it all agents are on one host, and a job that could not be started there waits for a minute.
    """
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name] if may_mount() else []


def work_dir(host: Path) -> Path:
    """The folder for the task directories of an agent on this host."""
    return host / f"fray-{os.getuid()}" / "work"


def marked(mark: str) -> list[int]:
    """The processes of this machine that descend from a run's agents: its mark is in their environment."""
    wanted = f"{MARK}={mark}".encode()
    return [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if wanted in _read(path).split(b"\0")
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
