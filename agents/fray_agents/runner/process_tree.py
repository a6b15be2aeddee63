"""The task's processes: all descendants of the runner, or of its container's init.

As a subreaper the runner inherits every process whose parent has ended, including daemons in sessions of their own. So
the tree is everything below it in `/proc`, and it is empty exactly when the kernel says that the runner has no child to
wait for.

The processes of a container are, with podman, below the runner, behind the engine's own processes; with docker they are
below a daemon. In both cases they are below the container's init: the topmost process that has the task's directory in
its environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


KILL_INTERVAL = 0.02
"""Seconds between two rounds of kills while some of the tree is left: most processes end within milliseconds."""

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""From `linux/prctl.h`."""

THREADS_FIELD = 17
"""Index in `stat_fields` of the number of threads."""

prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl


def become_subreaper() -> None:
    """Make this process the subreaper (prctl(2)): its orphaned descendants become its children."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap() -> tuple[dict[int, int], bool]:
    """Wait statuses by pid of the children that ended, and whether no process of the tree is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, True
        if pid == 0:
            return ended, False
        ended[pid] = status


def signal_all(number: int) -> None:
    """Signal every process of the tree; processes started meanwhile need another call."""
    signal_each(descendants(), number)


def signal_each(pids: Iterable[int], number: int) -> None:
    """Signal each of the processes that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # it has ended, or belongs to another user: the caller sees what is left


def descendants(root: int | None = None) -> list[int]:
    """Process ids of the tree below `root`, by default this process; parents first."""
    children = _children if os.path.exists("/proc/thread-self/children") else _scan().__getitem__
    found = children(os.getpid() if root is None else root)
    for pid in found:
        found.extend(children(pid))
    return found


def is_alive(pid: int) -> bool:
    """Whether any thread of the process runs or may run."""
    fields = stat_fields(pid)
    return bool(fields) and (fields[0] not in "ZX" or int(fields[THREADS_FIELD]) > 1)


def _children(pid: int) -> list[int]:
    """Children of all threads of `pid`; the cost does not depend on other processes of the host."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile
    return found


def _scan() -> defaultdict[int, list[int]]:
    """Children by parent, for kernels without CONFIG_PROC_CHILDREN."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            children[int(fields[1])].append(int(name))
    return children


def stat_fields(pid: int) -> list[str]:
    """The fields of `/proc/<pid>/stat`, from the state on; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def environment_of(pid: int) -> bytes:
    """The variables with which the process was started, each followed by a null byte; b"" if they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:  # it is gone, or belongs to another user
        return b""


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
