"""The limits of a task, and the watch over those that the kernel does not keep by itself."""

import os
import time

from fray_agents.runner.meter import UsageMeter, process_text
from fray_agents.runner.task_cgroup import TaskCgroup

_LOOK_INTERVAL = 0.25
"""Seconds between two looks at a task whose memory the kernel does not limit: in that time a process writes to some
hundred MB."""

_LARGEST_SHARE = 0.02
"""Share of the time that these looks may take: thousands of processes, or many GB of mapped files, are looked at more
rarely."""

_SUSPICIOUS_SHARE = 0.5
"""Share of its memory, or of its host's, from which on a task was probably killed for that: the last sample may be two
seconds old, in which a process writes to some GB, and others of its host have the rest."""

_BLAMED_SHARE = 0.5
"""Share of its host's disk from which on a task is told that it filled it: no other can have more."""

_HOST_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Limits:
    """The most that a task may use; 0: no limit.

    Attributes:
        memory: bytes of memory of all its processes.
        disk: bytes in its work directory.
        processes: processes and threads.
        cpu: thousandths of a core, by which it has its share while others want the same cores.
        hard_cpu: it never has more than `cpu`. Only the kernel can keep this, and the share.
    """

    def __init__(
        self, *, memory: int = 0, disk: int = 0, processes: int = 0, cpu: int = 0, hard_cpu: bool = False
    ) -> None:
        self.memory = memory
        self.disk = disk
        self.processes = processes
        self.cpu = cpu
        self.hard_cpu = hard_cpu


class LimitWatch:
    """Looks whether a task uses more than its limits, and says in which words it does.

    Attributes:
        interval: seconds until the next look at it, if that is to be before its usage is reported.
    """

    def __init__(self, limits: Limits, cgroup: TaskCgroup, meter: UsageMeter) -> None:
        self._limits = limits
        self._cgroup = cgroup
        self._meter = meter
        self._kernel_limits_memory = cgroup.limit_memory(limits.memory) if limits.memory else False
        self._kernel_limits_processes = cgroup.limit_processes(limits.processes) if limits.processes else False
        cgroup.share_cpu(limits.cpu, limits.hard_cpu)
        self._watches_memory = limits.memory > 0 and not self._kernel_limits_memory
        self.interval = _LOOK_INTERVAL if self._watches_memory else float("inf")

    def passed(self, began: float) -> tuple[str, str] | None:
        """Kind and message of an end for which the task is to be killed now.

        Args:
            began: monotonic time at which the meter began with its last sample.
        """
        found = self._memory_passed() or self._processes_passed() or self._disk_passed()
        if self._watches_memory:
            self.interval = max(_LOOK_INTERVAL, (time.monotonic() - began) / _LARGEST_SHARE)
        return found

    def _memory_passed(self) -> tuple[str, str] | None:
        limit = self._limits.memory
        if not self._watches_memory or self._meter.memory <= limit:
            return None
        owned = self._meter.own_memory()
        if (used := sum(owned.values())) <= limit:
            return None
        largest = max(owned, key=owned.__getitem__)
        return "out-of-memory", self._too_much_memory(used, process_text(largest), owned[largest])

    def _processes_passed(self) -> tuple[str, str] | None:
        limit, threads = self._limits.processes, self._meter.threads
        if not limit or self._kernel_limits_processes or threads <= limit:
            return None
        return "limit-exceeded", f"it had {threads:,} processes and threads, its limit is {limit:,}; start fewer"

    def _disk_passed(self) -> tuple[str, str] | None:
        limit, disk = self._limits.disk, self._meter.disk
        if not limit or disk <= limit:
            return None
        used = f"it used more disk than its limit of {_text(limit)}: {_text(disk)} in its work directory"
        return "limit-exceeded", f"{used}; ask for more disk, or remove what is not needed any more"

    def on_full_disk(self, folder: str) -> tuple[str, str]:
        """Kind and message of the end of a task of which `folder` cannot take another byte."""
        disk = os.statvfs(folder)
        own, total = self._meter.whole_disk(), disk.f_blocks * disk.f_frsize
        if own >= _BLAMED_SHARE * total:
            what = f"it filled the disk of its host: {_text(own)} of {_text(total)} are in its work directory"
            return "limit-exceeded", f"{what}; ask for more disk, or remove what is not needed any more"
        what = f"the disk of {folder} is full: of {_text(total)} this job's work directory has {_text(own)}"
        remedy = "remove what is there, also what jobs left in their temporary directory"
        return "host-failed", f"{what}; {remedy}, or start the agent with TMPDIR on a larger disk"

    def killed_by_kernel(self) -> str:
        """The message of a task that the kernel has killed for lack of memory: its own limit's, or the host's."""
        peak = max(self._cgroup.memory_peak(), self._meter.memory_peak)
        if self._kernel_limits_memory and self._cgroup.count("memory.events", "oom"):
            return self._too_much_memory(peak, *self._meter.largest())
        lack = "killed for lack of memory on its host (SIGKILL while the kernel's out-of-memory counter rose)"
        return _memory_text(lack, peak, *self._meter.largest())

    def killed_by_others(self) -> str:
        """What may have sent a SIGKILL that neither this runner nor, as its counter says, the kernel has sent."""
        peak = max(self._cgroup.memory_peak(), self._meter.memory_peak)
        most = self._limits.memory or _HOST_MEMORY
        if peak < _SUSPICIOUS_SHARE * most:
            return f"sent by others than Fray, and not for lack of memory as far as is seen (peak {_text(peak)})"
        whose = "it asked for" if self._limits.memory else "its host has"
        return f"probably for lack of memory: peak {_text(peak)} of the {_text(most)} that {whose}; ask for more memory"

    def refused_by_kernel(self) -> str:
        """What the task was refused, if it was, which may have been why it failed; else ""."""
        if not self._kernel_limits_processes or not self._cgroup.count("pids.events", "max"):
            return ""
        return f"it was refused more than the {self._limits.processes:,} processes and threads that it may have"

    def _too_much_memory(self, peak: int, largest: str, size: int) -> str:
        limit = f"it used more memory than its limit of {_text(self._limits.memory)}"
        return _memory_text(limit, peak, largest, size)


def _memory_text(why: str, peak: int, largest: str, size: int) -> str:
    return f"{why}: peak {_text(peak)}, largest process {largest} with {_text(size)}; ask for more memory"


def _text(size: int) -> str:
    """A size in MB also where it has GB: a peak stands beside a limit that it passed by little."""
    return f"{size / 10**6:,.0f} MB"
