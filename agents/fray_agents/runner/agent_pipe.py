"""The runner's pipe to its agent: JSON lines both ways. No call waits for the agent, which may be frozen.

From the agent: first a `StartRequest`; then `{"deadline": t}` (CLOCK_BOOTTIME), `{"stop": grace, "why": kind}` and
`{"kill": true}`. To the agent, as `event`: "started" (`pid`), "chunk" (`number`), "usage", "sigterm_sent" and,
exactly once and last, "exit" (`exit`, `complete_before_stop`).
"""

from __future__ import annotations

import json
import os

from fray_agents.runner.limits import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_READ = 1 << 16
"""Bytes of one read: the capacity of a pipe."""


class StartRequest:
    """The agent's request to run a task.

    Attributes:
        directory: of this attempt; holds `log/`, `work/` and the task's result.
        command: program and arguments.
        is_call: the command runs a callable, which leaves its exception in `error.json`.
        stdin: file that the task reads as its standard input.
        env: the task's complete environment, with `python_path` at the head of its PYTHONPATH.
        secrets: values of variables that the log must not show.
        python_path: folders that are searched for modules first.
        preamble: file whose lines come first in the log; "" for none.
        cwd: its working directory; "" for `work/`.
        timeout: seconds that it may run, or None.
        grace: seconds between SIGTERM and SIGKILL after a time-out.
        deadline: CLOCK_BOOTTIME at which it is killed unless the agent moves this on.
        result_limit, spool_limit: most bytes of a result, and of log chunks that wait for the agent.
        seal_interval: seconds after which a log chunk is sealed even if it is not full.
        in_container: the command starts a container, whose processes are the task.
        limits: what it may use at most.
        oom_counter: file with an `oom_kill` line, or "" for that of the runner's cgroup.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self.directory: str = fields["directory"]
        self.command: list[str] = fields["command"]
        self.is_call: bool = fields["is_call"]
        self.stdin: str = fields["stdin"]
        self.env: dict[str, str] = fields["env"]
        self.secrets: list[str] = fields["secrets"]
        self.python_path: list[str] = fields["python_path"]
        self.preamble: str = fields["preamble"]
        self.cwd: str = fields["cwd"]
        self.timeout: float | None = fields["timeout"]
        self.grace: float = fields["grace"]
        self.deadline: float = fields["deadline"]
        self.result_limit: int = fields["result_limit"]
        self.spool_limit: int = fields["spool_limit"]
        self.seal_interval: float = fields["seal_interval"]
        self.limits = Limits(**fields["limits"])
        self.oom_counter: str = fields["oom_counter"]
        self.in_container: bool = fields["in_container"]

    @property
    def start_directory(self) -> str:
        """The folder in which the task starts."""
        return self.cwd or self.path("work")

    def path(self, name: str) -> str:
        """Path of `name` in the attempt's directory."""
        return os.path.join(self.directory, name)


class AgentPipe:
    """Requests from the agent and events to it; `closed` once the agent's end is closed."""

    def __init__(self, inlet: int, outlet: int) -> None:
        self.inlet = inlet
        self.outlet = outlet
        self.closed = False
        self._received = b""
        self._unsent = b""
        os.set_blocking(outlet, False)

    def start_request(self) -> StartRequest | None:
        """Wait for the first line; None if the agent ended before it was complete."""
        while b"\n" not in self._received and not self.closed:
            self._receive()
        os.set_blocking(self.inlet, False)
        line, _, self._received = self._received.partition(b"\n")
        return None if self.closed else StartRequest(json.loads(line))

    def messages(self) -> list[dict[str, Any]]:
        """The messages that the agent has sent since the last call."""
        self._receive()
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, event: str, **fields: object) -> None:
        """Send an event, or keep it until the agent reads again."""
        self._unsent += json.dumps({"event": event, **fields}).encode() + b"\n"
        self.flush()

    @property
    def congested(self) -> bool:
        """Whether the agent has not read all that was sent before."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send as much as the pipe accepts now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.outlet, self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._close()

    def finish(self) -> None:
        """Wait until the agent has read everything, or is gone."""
        os.set_blocking(self.outlet, True)
        self.flush()

    def _receive(self) -> None:
        try:
            data = os.read(self.inlet, _READ)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self._received += data
        if not data:
            self._close()

    def _close(self) -> None:
        self.closed = True
        self._unsent = b""
