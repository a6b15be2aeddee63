"""The task's own cgroup (v2): every process of the task is born in it, and no `setsid` or dead parent leads out.

The first is put there by the `clone3` that makes it. To move a process later takes the kernel some 12 ms: it waits
until no processor is about to fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

from fray_agents.runner import process_tree

_SYS_CLONE3 = 435
"""The same number on all architectures."""

_CLONE_INTO_CGROUP = 0x2_0000_0000
_CLONE_ARGS = struct.Struct("11Q")
"""From `linux/sched.h`: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
set_tid_size, cgroup."""

_CPU_PER_WEIGHT = 10
"""Thousandths of a core for each unit of weight: a core has the 100 that are the kernel's default."""

_LEAST_CPU, _LARGEST_WEIGHT = 500, 10_000
"""What asks for no core is not starved by what asks for some; the kernel's largest weight."""

_CPU_PERIOD = 100_000
"""Microseconds over which a hard limit is kept: the kernel's default."""

_libc = ctypes.PyDLL(None)
"""It keeps the interpreter's lock during a call: the child, which has this thread alone, must not ask for it."""


class TaskCgroup:
    """One cgroup below those that the agent may make; with the path "" none: processes are made as usual."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self) -> None:
        """Make it, if that can be; one that an earlier task left under the same name is emptied."""
        try:
            os.mkdir(self.path)
        except FileExistsError:
            self.kill()
        except OSError:  # the kernel has no room for more, or others have taken the right away
            return

    def fork(self) -> int:
        """As `os.fork`, but the child begins in this group.

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
        """`fork` where containers forbid `clone3`, and on kernels without it."""
        pid = os.fork()
        if pid == 0:
            self._write("cgroup.procs", "0")
        return pid

    def kill(self) -> None:
        """Send SIGKILL to every process in it and below, also to those that are being forked."""
        if not self._write("cgroup.kill", "1"):  # kernels before 5.14
            process_tree.signal_each(self.processes(), signal.SIGKILL)

    def processes(self) -> list[int]:
        """The processes in it, without those below."""
        try:
            with open(f"{self.path}/cgroup.procs") as lines:
                return [int(line) for line in lines]
        except OSError:
            return []

    def limit_memory(self, limit: int) -> bool:
        """Have the kernel kill all its processes when they need more bytes; whether it will."""
        self._write("memory.swap.max", "0")
        self._write("memory.oom.group", "1")
        return self._write("memory.max", str(limit))

    def limit_processes(self, limit: int) -> bool:
        """Have the kernel refuse more processes and threads; whether it will."""
        return self._write("pids.max", str(limit))

    def share_cpu(self, cpu: int, is_hard: bool) -> None:
        """Give it its share of the cores that others want too: by thousandths of a core, at least half of one.

        Args:
            is_hard: it has no more than that either way.
        """
        self._write("cpu.weight", str(min(max(cpu, _LEAST_CPU) // _CPU_PER_WEIGHT, _LARGEST_WEIGHT)))
        if is_hard:
            self._write("cpu.max", f"{cpu * _CPU_PERIOD // 1000} {_CPU_PERIOD}")

    def memory_peak(self) -> int:
        """The most bytes that it has had; 0 if the kernel does not know."""
        try:
            with open(f"{self.path}/memory.peak") as file:
                return int(file.read())
        except OSError:
            return 0

    def is_populated(self) -> bool:
        """Whether a process is left in it or below."""
        return self.count("cgroup.events", "populated") > 0

    def count(self, file: str, name: str) -> int:
        """The number that stands behind `name` in one of its files; 0 if there is none."""
        try:
            with open(f"{self.path}/{file}") as lines:
                return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
        except OSError:
            return 0

    def remove(self) -> None:
        """Remove it and what its task has made below; what is still populated stays."""
        for place, _, _ in os.walk(self.path, topdown=False):
            try:
                os.rmdir(place)
            except OSError:
                continue

    def _write(self, file: str, value: str) -> bool:
        """Write one of its files; whether the kernel has it and took the value."""
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
