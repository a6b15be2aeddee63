"""A callable's process that is started before there is a call: it has the imports that most calls need, and waits."""

from __future__ import annotations

import json
import os
import signal

from fray_agents.runner.spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fray_agents.runner.agent_pipe import StartRequest


class PrestartedProcess:
    """The waiting process, a child of this runner; its code is `fray_agents.tasks.callable_main.wait_for_call`."""

    def __init__(self, command: list[str], fork: Callable[[], int]) -> None:
        read, self._write = os.pipe()
        try:
            self._pid, self._out, self._err = spawn(command, dict(os.environ), os.getcwd(), read, fork)
        finally:
            os.close(read)

    def take(self, request: StartRequest) -> tuple[int, int, int] | None:
        """Pass it its call; returns what `spawn` returns, or None if the process has ended meanwhile."""
        call = {
            "directory": request.directory,
            "result_limit": request.result_limit,
            "env": request.env,
            "python_path": request.python_path,
            "cwd": request.start_directory,
        }
        try:
            with open(self._write, "wb") as file:
                file.write(json.dumps(call).encode() + b"\n")
        except BrokenPipeError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            return None
        return self._pid, self._out, self._err
