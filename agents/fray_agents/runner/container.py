"""The processes of a task that runs in a container.

With podman they are below the runner, behind the engine's own processes; with docker they are below a daemon. In both
cases they are below the container's init: the topmost process that has the task's directory in its environment.
"""

from __future__ import annotations

import os
import signal

from fray_agents.runner.process_tree import descendants, environment_of, signal_each, stat_fields

ENGINE_TIMEOUT = 3.0
"""Seconds for the engine to notice that its container is gone, and to exit: it takes some 0.2. Less than the time that
an agent waits for a runner."""

_PARENT_FIELD = 1
"""Index of the parent's pid in `stat_fields`."""


class ContainerProcesses:
    """Finds and signals the processes of one container.

    Attributes:
        seen: whether the container was ever running.
    """

    def __init__(self, directory: str) -> None:
        self.seen = False
        self._variable = b"\0FRAY_TASK_DIR=" + os.fsencode(directory) + b"\0"
        self._init = 0

    def pids(self) -> list[int]:
        """Its processes, the init first; empty before it has started and after it has ended."""
        if not self._names_task(self._init):
            self._init = self._found_init()
            self.seen |= self._init != 0
        return [self._init, *descendants(self._init)] if self._init else []

    def terminate(self) -> bool:
        """Send SIGTERM to every process but the init, which ends with its program; whether there was such a process."""
        found = self.pids()[1:]
        signal_each(found, signal.SIGTERM)
        return bool(found)

    def kill(self) -> None:
        """Send SIGKILL to all of them; the kernel ends everything in the init's namespace with it."""
        signal_each(self.pids(), signal.SIGKILL)

    def _found_init(self) -> int:
        named = [int(name) for name in os.listdir("/proc") if name.isdigit() and self._names_task(int(name))]
        for pid in named:
            fields = stat_fields(pid)
            if fields and fields[0] != "Z" and int(fields[_PARENT_FIELD]) not in named:
                return pid
        return 0

    def _names_task(self, pid: int) -> bool:
        return self._variable in b"\0" + environment_of(pid)
