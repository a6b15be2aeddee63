"""Measures what the task uses: CPU and memory of its tree from `/proc`, disk of its work directory.

Memory is the sum of resident sets: quick, but pages shared between processes count once for each. Looking at the disk
is spread over the samples, so that a directory of a million files costs no more at once than one of a thousand.
"""

from __future__ import annotations

import os
import resource
import time

from fray_agents.runner.process_tree import stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CPU_FIELDS = slice(11, 15)
_RSS_FIELD = 21
"""In `stat_fields`: utime, stime, cutime and cstime; resident pages."""

_ENTRIES_PER_SAMPLE = 1_000
_ENTRIES_AT_END = 20_000
"""Files whose size is looked up at once: some milliseconds while the task runs, more once it has ended."""


class UsageMeter:
    """Usage of the task: of its processes, as `pids` lists them, and of the disk below the directory `work`."""

    def __init__(self, work: str, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._disk = _DiskMeter(work)
        self._at = time.monotonic()
        self._cpu = 0.0
        self._peak = 0

    def sample(self) -> dict[str, float]:
        """Usage now, with the fields of `ResourceUsage`."""
        stats = [fields for pid in self._pids() if (fields := stat_fields(pid))]
        memory = sum(int(fields[_RSS_FIELD]) for fields in stats) * _PAGE
        self._peak = max(self._peak, memory)
        # What ended is in our own total, once its parent, or we, waited for it.
        running = sum(int(value) for fields in stats for value in fields[_CPU_FIELDS]) / _TICKS
        cpu = max(self._cpu, running + _ended().ru_utime + _ended().ru_stime)
        now = time.monotonic()
        percent = 100 * (cpu - self._cpu) / max(now - self._at, 1 / _TICKS)
        self._at, self._cpu = now, cpu
        self._disk.advance(_ENTRIES_PER_SAMPLE)
        return self._usage(cpu, round(percent, 1), memory)

    def total(self) -> dict[str, float]:
        """Totals and peaks, once nothing of the tree is left."""
        ended = _ended()
        self._peak = max(self._peak, ended.ru_maxrss * 1024)
        self._disk.advance(_ENTRIES_AT_END)
        cpu = max(self._cpu, ended.ru_utime + ended.ru_stime)  # what a daemon waited for is in the samples alone
        return self._usage(cpu, 0.0, 0)

    def _usage(self, cpu: float, percent: float, memory: int) -> dict[str, float]:
        return {
            "cpu_seconds": round(cpu, 3),
            "cpu_percent": percent,
            "memory": memory,
            "memory_peak": self._peak,
            "disk": self._disk.bytes,
        }


def _ended() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_CHILDREN)


class _DiskMeter:
    """Bytes on disk below a directory: of the last complete walk, or of the present one if that is more already."""

    def __init__(self, directory: str) -> None:
        self.bytes = 0
        self._directory = directory
        self._walk = disk_sizes(directory)
        self._sum = 0

    def advance(self, entries: int) -> None:
        """Go on with the walk, for at most `entries` files."""
        for _ in range(entries):
            size = next(self._walk, None)
            if size is None:
                self.bytes, self._sum = self._sum, 0
                self._walk = disk_sizes(self._directory)
                return
            self._sum += size
        self.bytes = max(self.bytes, self._sum)


def disk_sizes(directory: str) -> Iterator[int]:
    """Bytes on disk of each thing below `directory`; what goes away meanwhile is left out."""
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
