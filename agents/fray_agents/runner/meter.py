"""Measures a task's usage: CPU and memory of its tree from `/proc`, and the disk usage of its work directory.

Memory is the sum of resident sets. That is quick, but pages that processes share count once for each of them, and pages
of mapped files count too. If that is too coarse, `own_memory` asks the kernel for each process's share. The walk over
the directory is spread over the samples, so a million files cost no more at once than a thousand.
"""

from __future__ import annotations

import os
import resource
import time

from fray_agents.runner.process_tree import THREADS_FIELD, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CPU_FIELDS = slice(11, 15)
_RSS_FIELD = 21
"""Indices in `stat_fields`: utime, stime, cutime and cstime; resident pages."""

_ENTRIES_PER_SECOND = 500
_ENTRIES_AT_END = 20_000
"""Files whose size is looked up: so many a second while the task runs, a few milliseconds at once; more at its end."""


class UsageMeter:
    """Usage of the task.

    Args:
        work: the directory whose disk usage counts.
        program: name of the task's first process.
        pids: lists its processes.

    Attributes:
        memory, memory_peak, threads: of all processes at the last sample; the peak is the most so far.
    """

    def __init__(self, work: str, program: str, pids: Callable[[], list[int]]) -> None:
        self.memory = self.memory_peak = self.threads = 0
        self._pids = pids
        self._resident: dict[int, int] = {}  # bytes by process
        self._largest = program, 0
        self._disk = _DiskMeter(work)
        self._at = time.monotonic()
        self._cpu = 0.0

    def sample(self) -> dict[str, float]:
        """Usage now, with the fields of `ResourceUsage`."""
        found = {pid: fields for pid in self._pids() if (fields := stat_fields(pid))}
        stats = found.values()
        self.threads = sum(int(fields[THREADS_FIELD]) for fields in stats)
        self._resident = {pid: int(fields[_RSS_FIELD]) * _PAGE for pid, fields in found.items()}
        self.memory = sum(self._resident.values())
        self.memory_peak = max(self.memory_peak, self.memory)
        self._note_largest()
        # Time of ended processes is in our own total, once their parent, or this process, has waited for them.
        running = sum(int(value) for fields in stats for value in fields[_CPU_FIELDS]) / _TICKS
        cpu = max(self._cpu, running + _ended().ru_utime + _ended().ru_stime)
        now = time.monotonic()
        seconds = max(now - self._at, 1 / _TICKS)
        percent = 100 * (cpu - self._cpu) / seconds
        self._at, self._cpu = now, cpu
        self._disk.advance(round(_ENTRIES_PER_SECOND * seconds))
        return self._usage(cpu, round(percent, 1))

    def total(self) -> dict[str, float]:
        """Totals and peaks, once nothing of the tree is left."""
        ended = _ended()
        self.memory = 0
        self.memory_peak = max(self.memory_peak, ended.ru_maxrss * 1024)
        self._disk.advance(_ENTRIES_AT_END)
        cpu = max(self._cpu, ended.ru_utime + ended.ru_stime)  # only samples have processes that a daemon waited for
        return self._usage(cpu, 0.0)

    @property
    def disk(self) -> int:
        """Bytes in the directory, as far as the walk has come."""
        return self._disk.bytes

    def whole_disk(self) -> int:
        """Bytes in the directory, after a walk over up to `_ENTRIES_AT_END` more files."""
        self._disk.advance(_ENTRIES_AT_END)
        return self.disk

    def own_memory(self) -> dict[int, int]:
        """Bytes by process of the last sample: its part of shared pages counts, and mapped files do not.

        Takes some milliseconds for each GB.
        """
        return {pid: _own_memory(pid, resident) for pid, resident in self._resident.items()}

    def largest(self) -> tuple[str, int]:
        """Name and bytes of the process that was the largest at any sample."""
        name, size = self._largest
        return name, max(size, _ended().ru_maxrss * 1024)

    def _note_largest(self) -> None:
        pid = max(self._resident, key=self._resident.__getitem__, default=0)
        if pid and self._resident[pid] > self._largest[1]:
            self._largest = process_text(pid), self._resident[pid]

    def _usage(self, cpu: float, percent: float) -> dict[str, float]:
        return {
            "cpu_seconds": round(cpu, 3),
            "cpu_percent": percent,
            "memory": self.memory,
            "memory_peak": self.memory_peak,
            "disk": self.disk,
        }


def _ended() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_CHILDREN)


def process_text(pid: int) -> str:
    """The process's name and id, as text for people."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return f"{file.read().strip()} (pid {pid})"
    except OSError:
        return f"pid {pid}"


def _own_memory(pid: int, resident: int) -> int:
    """Bytes of a process: its part of shared pages, no mapped files; `resident` if the kernel does not say."""
    shares = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                name, _, size = line.partition(":")
                if name.startswith("Pss"):
                    shares[name] = int(size.split()[0]) * 1024
    except OSError:
        return resident
    return shares.get("Pss_Anon", shares.get("Pss", resident)) + shares.get("Pss_Shmem", 0)


class _DiskMeter:
    """Bytes on disk below a directory: of the last complete walk, or of the current one if that is already more."""

    def __init__(self, directory: str) -> None:
        self.bytes = 0
        self._directory = directory
        self._walk = disk_sizes(directory)
        self._sum = 0

    def advance(self, entries: int) -> None:
        """Continue the walk, for at most `entries` files."""
        for _ in range(entries):
            size = next(self._walk, None)
            if size is None:
                self.bytes, self._sum = self._sum, 0
                self._walk = disk_sizes(self._directory)
                return
            self._sum += size
        self.bytes = max(self.bytes, self._sum)


def disk_sizes(directory: str) -> Iterator[int]:
    """Bytes on disk of each entry below `directory`; entries that vanish meanwhile are left out."""
    pending = [directory]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue  # the task removed or closed it meanwhile
