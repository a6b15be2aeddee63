"""A task's process that is started before there is a task: it has imported what most calls need, and waits for one."""

from __future__ import annotations

import json
import os
import signal

from fray_agents.runner.spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray_agents.runner.agent_pipe import StartRequest


class PrestartedProcess:
    """The waiting process, a child of this runner; see `fray_agents.tasks.callable_main.wait_for_call` for its side."""

    def __init__(self, command: list[str]) -> None:
        read, self._write = os.pipe()
        try:
            self._pid, self._out, self._err = spawn(command, dict(os.environ), os.getcwd(), read)
        finally:
            os.close(read)

    def take(self, order: StartRequest) -> tuple[int, int, int] | None:
        """Give it its call; what `spawn` returns, or None if it has ended meanwhile."""
        call = {"directory": order.directory, "result_limit": order.result_limit, "env": order.env, "cwd": order.place}
        try:
            with open(self._write, "wb") as file:
                file.write(json.dumps(call).encode() + b"\n")
        except BrokenPipeError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            return None
        return self._pid, self._out, self._err
