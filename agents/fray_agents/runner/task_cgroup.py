"""Cgroups: those of this process with their count of out-of-memory kills, and the task's own.

There are two generations of cgroups: one tree (v2), or a tree for each controller (v1), possibly beside a v2 tree that
limits nothing. A container often sees its own directory as the root of the mount, whatever path the kernel reports. So
this module looks at every ancestor that exists.

In the task's own cgroup (v2) every process of the task starts, and stays after `setsid` or its parent's end.

The `clone3` call that creates the first process puts it there. To move a process later takes the kernel some 12 ms,
because it waits until no processor is about to fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

from fray_agents.runner import process_tree

HOST_OOM_COUNTER = "/proc/vmstat"
"""The file that counts out-of-memory kills of the whole host, for containers, whose own cgroups vanish with them."""

UNIFIED = ""
"""The name here for the one tree of cgroups v2, in place of a controller."""


def cgroup_directories(controller: str, root: str = "/") -> list[str]:
    """This process's cgroup directories for `controller` (`UNIFIED` for v2), from its own to the outermost.

    Args:
        root: the folder in which `/proc` and `/sys` are looked for.
    """
    mount = os.path.join(root, "sys/fs/cgroup", controller)
    if controller == UNIFIED and os.path.isdir(beside := os.path.join(mount, "unified")):
        mount = beside
    path = _cgroup_path(controller, root)
    found = []
    while path is not None:
        directory = os.path.join(mount, path.lstrip("/")).rstrip("/")
        if os.path.isdir(directory):
            found.append(directory)
        path = os.path.dirname(path) if path != "/" else None
    return found


def _cgroup_path(controller: str, root: str) -> str | None:
    """The path that the kernel reports for this process: `0::/path` (v2), `4:memory:/path` (v1)."""
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def oom_counter(own: str, root: str = "/") -> str:
    """The file whose `oom_kill` line counts the kills in the cgroup `own`, or else in that of this process."""
    candidates = [
        f"{own}/memory.events",
        *(os.path.join(place, "memory.events") for place in cgroup_directories(UNIFIED, root)),
        *(os.path.join(place, "memory.oom_control") for place in cgroup_directories("memory", root)),
    ]
    for path in candidates:
        if os.path.exists(path):
            return path
    return os.path.join(root, HOST_OOM_COUNTER.lstrip("/"))


def oom_kills(counter: str) -> int:
    """The count in `counter`; 0 on kernels that do not count."""
    with open(counter) as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


_SYS_CLONE3 = 435
"""The system call's number on all architectures."""

_CLONE_INTO_CGROUP = 0x2_0000_0000
_CLONE_ARGS = struct.Struct("11Q")
"""From `linux/sched.h`: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
set_tid_size, cgroup."""

_CPU_PER_WEIGHT = 10
"""Thousandths of a core for each unit of weight, so that one core gets the kernel's default weight of 100."""

_LEAST_CPU, _LARGEST_WEIGHT = 500, 10_000
"""Thousandths of a core that a task counts for at least, so that jobs without cores are not starved; and the kernel's
largest weight."""

_CPU_PERIOD = 100_000
"""Microseconds over which a hard limit is measured: the kernel's default."""

_libc = ctypes.PyDLL(None)
"""PyDLL keeps the interpreter's lock during a call: the child has only this thread, and must not wait for the lock."""


class TaskCgroup:
    """One cgroup that the agent may create; with the path "" there is none, and processes start as usual."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self) -> None:
        """Create it if possible; if an earlier task left one of the same name, kill the processes in it."""
        try:
            os.mkdir(self.path)
        except FileExistsError:
            self.kill()
        except OSError:  # the kernel has no room for more, or the right to create cgroups was taken away
            return

    def fork(self) -> int:
        """As `os.fork`, but the child starts in this group.

        Raises:
            OSError: the host has no room for another process.
        """
        try:
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return os.fork()
        try:
            arguments = _CLONE_ARGS.pack(_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, directory)
            pid = _libc.syscall(_SYS_CLONE3, arguments, len(arguments))
        finally:
            os.close(directory)
        return pid if pid >= 0 else self._fork_and_move()

    def _fork_and_move(self) -> int:
        """Replace `clone3` where containers forbid it, and on kernels without it."""
        pid = os.fork()
        if pid == 0:
            self._write("cgroup.procs", "0")
        return pid

    def kill(self) -> None:
        """Send SIGKILL to every process in it and below it, including those that are just being forked."""
        if not self._write("cgroup.kill", "1"):  # kernels before 5.14
            process_tree.signal_each(self.processes(), signal.SIGKILL)

    def processes(self) -> list[int]:
        """The processes in it, without those in groups below it."""
        try:
            with open(f"{self.path}/cgroup.procs") as lines:
                return [int(line) for line in lines]
        except OSError:
            return []

    def limit_memory(self, limit: int) -> bool:
        """Make the kernel kill all its processes when they need more than `limit` bytes; whether it will."""
        self._write("memory.swap.max", "0")
        self._write("memory.oom.group", "1")
        return self._write("memory.max", str(limit))

    def limit_processes(self, limit: int) -> bool:
        """Make the kernel refuse more processes and threads than `limit`; whether it will."""
        return self._write("pids.max", str(limit))

    def share_cpu(self, cpu: int, is_hard: bool) -> None:
        """Give it a share of contended cores in proportion to `cpu` thousandths of a core, at least half a core.

        Args:
            is_hard: it never gets more than `cpu`, even if cores are idle.
        """
        self._write("cpu.weight", str(min(max(cpu, _LEAST_CPU) // _CPU_PER_WEIGHT, _LARGEST_WEIGHT)))
        if is_hard:
            self._write("cpu.max", f"{cpu * _CPU_PERIOD // 1000} {_CPU_PERIOD}")

    def memory_peak(self) -> int:
        """The most bytes of memory that it has used; 0 if the kernel does not say."""
        try:
            with open(f"{self.path}/memory.peak") as file:
                return int(file.read())
        except OSError:
            return 0

    def is_populated(self) -> bool:
        """Whether any process is left in it or below it."""
        return self.count("cgroup.events", "populated") > 0

    def count(self, file: str, name: str) -> int:
        """The number after `name` in one of its files; 0 if there is none."""
        try:
            with open(f"{self.path}/{file}") as lines:
                return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
        except OSError:
            return 0

    def remove(self) -> None:
        """Remove it and the groups that its task created below it; groups with processes stay."""
        for place, _, _ in os.walk(self.path, topdown=False):
            try:
                os.rmdir(place)
            except OSError:
                continue

    def _write(self, file: str, value: str) -> bool:
        """Write one of its files; whether the file exists and the kernel accepted the value."""
        try:
            handle = os.open(f"{self.path}/{file}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(handle, value.encode())
        except OSError:
            return False
        finally:
            os.close(handle)
        return True
