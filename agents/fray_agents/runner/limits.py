"""The limits of a task, and the enforcement of those that the kernel does not enforce."""

import os
import time

from fray_agents.runner import exit_kinds
from fray_agents.runner.meter import UsageMeter, process_text
from fray_agents.runner.task_cgroup import TaskCgroup

_CHECK_INTERVAL = 0.25
"""Seconds between two checks of a task whose memory the kernel does not limit: a process can write some hundred MB in
that time."""

_LARGEST_SHARE = 0.02
"""Largest share of the time that these checks may take: a task with thousands of processes, or many GB of mapped files,
is checked more rarely."""

_SUSPICIOUS_SHARE = 0.5
"""Share of the memory limit, or of the host's memory, above which lack of memory probably caused a SIGKILL. The last
sample may be two seconds old, in which a process writes some GB, and other processes of the host use the rest."""

_BLAMED_SHARE = 0.5
"""Share of its host's disk above which a task is blamed for filling it: no other task can have more."""

_HOST_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Limits:
    """The most that a task may use; 0: no limit.

    Attributes:
        memory: bytes of memory of all its processes.
        disk: bytes in its work directory.
        processes: processes and threads.
        cpu: thousandths of a core: its share when other tasks want the same cores.
        hard_cpu: it never gets more than `cpu`. Only the kernel can enforce this, and the share.
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
    """Checks whether a task exceeds its limits, and words the message if it does.

    Attributes:
        interval: seconds until the next check, if that comes before the next report of its usage.
    """

    def __init__(self, limits: Limits, cgroup: TaskCgroup, meter: UsageMeter) -> None:
        self._limits = limits
        self._cgroup = cgroup
        self._meter = meter
        self._kernel_limits_memory = cgroup.limit_memory(limits.memory) if limits.memory else False
        self._kernel_limits_processes = cgroup.limit_processes(limits.processes) if limits.processes else False
        cgroup.share_cpu(limits.cpu, limits.hard_cpu)
        self._watches_memory = limits.memory > 0 and not self._kernel_limits_memory
        self.interval = _CHECK_INTERVAL if self._watches_memory else float("inf")

    def passed(self, began: float) -> tuple[str, str] | None:
        """Kind and message of the exit if the task exceeds a limit and must be killed now.

        Args:
            began: monotonic time at which the meter began its last sample.
        """
        found = self._memory_exceeded() or self._processes_exceeded() or self._disk_exceeded()
        if self._watches_memory:
            self.interval = max(_CHECK_INTERVAL, (time.monotonic() - began) / _LARGEST_SHARE)
        return found

    def exceeded_at_end(self) -> tuple[str, str] | None:
        """Kind and message of the exit if a task that has ended had exceeded a limit since its last check."""
        if self._limits.disk:
            self._meter.whole_disk()  # ends the walk under way, which may have passed what was written since
            self._meter.whole_disk()
        return self._disk_exceeded()

    def _memory_exceeded(self) -> tuple[str, str] | None:
        limit = self._limits.memory
        if not self._watches_memory or self._meter.memory <= limit:
            return None
        owned = self._meter.own_memory()
        if (used := sum(owned.values())) <= limit:
            return None
        largest = max(owned, key=owned.__getitem__)
        return exit_kinds.OUT_OF_MEMORY, self._too_much_memory(used, process_text(largest), owned[largest])

    def _processes_exceeded(self) -> tuple[str, str] | None:
        limit, threads = self._limits.processes, self._meter.threads
        if not limit or self._kernel_limits_processes or threads <= limit:
            return None
        return (
            exit_kinds.LIMIT_EXCEEDED,
            f"it had {threads:,} processes and threads, its limit is {limit:,}; start fewer",
        )

    def _disk_exceeded(self) -> tuple[str, str] | None:
        limit, disk = self._limits.disk, self._meter.disk
        if not limit or disk <= limit:
            return None
        used = f"it used more disk than its limit of {_mb(limit)}: {_mb(disk)} in its work directory"
        return exit_kinds.LIMIT_EXCEEDED, f"{used}; ask for more disk, or remove what is not needed any more"

    def on_full_disk(self, folder: str) -> tuple[str, str]:
        """Kind and message of the exit of a task when the disk of `folder` is full."""
        disk = os.statvfs(folder)
        own, total = self._meter.whole_disk(), disk.f_blocks * disk.f_frsize
        if own >= _BLAMED_SHARE * total:
            what = f"it filled the disk of its host: {_mb(own)} of {_mb(total)} are in its work directory"
            return exit_kinds.LIMIT_EXCEEDED, f"{what}; ask for more disk, or remove what is not needed any more"
        what = f"the disk of {folder} is full: of {_mb(total)} this job's work directory has {_mb(own)}"
        remedy = "remove what is there, also what jobs left in their temporary directory"
        return exit_kinds.HOST_FAILED, f"{what}; {remedy}, or start the agent with TMPDIR on a larger disk"

    def killed_by_kernel(self) -> str:
        """The message for a task that the kernel killed for lack of memory: of its own limit or of the host."""
        peak = max(self._cgroup.memory_peak(), self._meter.memory_peak)
        if self._kernel_limits_memory and self._cgroup.count("memory.events", "oom"):
            return self._too_much_memory(peak, *self._meter.largest())
        lack = "killed for lack of memory on its host (SIGKILL while the kernel's out-of-memory counter rose)"
        return _memory_text(lack, peak, *self._meter.largest())

    def killed_by_others(self) -> str:
        """Text about who may have sent a SIGKILL that came neither from this runner nor, by its counter, the kernel."""
        peak = max(self._cgroup.memory_peak(), self._meter.memory_peak)
        limit = self._limits.memory or _HOST_MEMORY
        if peak < _SUSPICIOUS_SHARE * limit:
            return f"Fray did not send it, and memory does not seem to have run out (peak {_mb(peak)})"
        whose = "it asked for" if self._limits.memory else "its host has"
        return f"probably for lack of memory: peak {_mb(peak)} of the {_mb(limit)} that {whose}; ask for more memory"

    def refused_by_kernel(self) -> str:
        """Something that the kernel refused the task, which may be why it failed; "" for nothing."""
        if not self._kernel_limits_processes or not self._cgroup.count("pids.events", "max"):
            return ""
        return f"the kernel refused it more than its limit of {self._limits.processes:,} processes and threads"

    def _too_much_memory(self, peak: int, largest: str, size: int) -> str:
        limit = f"it used more memory than its limit of {_mb(self._limits.memory)}"
        return _memory_text(limit, peak, largest, size)


def _memory_text(why: str, peak: int, largest: str, size: int) -> str:
    return f"{why}: peak {_mb(peak)}, largest process {largest} with {_mb(size)}; ask for more memory"


def _mb(size: int) -> str:
    """A size in MB, even if it is several GB: a peak is shown beside a limit that it exceeds by little."""
    return f"{size / 10**6:,.0f} MB"
