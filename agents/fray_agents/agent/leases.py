"""The jobs that an agent holds, and what they leave free of its host; the heartbeat's holdings come from here."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_agents.tasks.handle import TaskHandle
from fray_coordinator.protocol.gpu_assignment import WHOLE, gpus_for, part_of_each
from fray_coordinator.protocol.scheduling import HostKind, remaining_after, shortage
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import Holding, JobRecord, Resources
from fray_layouts.states import ExitKind, HoldingPhase


@dataclass(slots=True, eq=False)
class HeldLease:
    """One job that the agent holds, from before its claim is sent until nothing is left to do about it.

    Attributes:
        entry: the index entry that it was claimed by.
        attempt: the one that runs; a restart raises it.
        phase: as in the heartbeat.
        job: the record as last seen; None while the claim is not resolved.
        starting: the coroutine that starts its task; a stop cancels it.
        task: the attempt's task; None before it is started.
        stop: (grace in seconds, exit kind) of a stop asked for before the task was started.
        entry_deleted: the index entry was removed since a beat listed this attempt.
        unhealthy: what the health check saw, once it has failed.
        idle: it uses nothing of the host: its task has ended and its end cannot be written, or its claim is in doubt.
        abandoned: its end cannot be written, and the agent leaves: others put it back once the agent is dead.
        activity: what is done before its task starts, for people; "" for nothing worth telling.
        gpus: places of the GPUs that its task has among those of the host.
        ports: the ports that its task has, by their names.
        resources: what the attempt holds of the host besides its task, let go when it is over.
        serves: it takes no room because it waits for calls; see `overcommit`.
    """

    entry: PendingKey
    phase: str = HoldingPhase.CLAIMING
    job: Stored[JobRecord] | None = None
    starting: asyncio.Task[TaskHandle | None] | None = None
    task: TaskHandle | None = None
    stop: tuple[float, str] | None = None
    entry_deleted: bool = False
    unhealthy: str = ""
    idle: bool = False
    abandoned: bool = False
    serves: bool = False
    activity: str = ""
    gpus: tuple[int, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self.attempt = self.entry.attempt

    @property
    def entry_in_index(self) -> PendingKey | None:
        """The index entry; None if it was removed."""
        return None if self.entry_deleted else self.entry

    def ask_to_stop(self, grace: float, why: str) -> None:
        """Stop the task, or have it not started.

        Args:
            grace: seconds between SIGTERM and SIGKILL.
            why: the kind of the attempt's exit.
        """
        self.stop = self.stop or (grace, why)
        if self.task is not None:
            self.task.stop(grace, why)
        elif self.starting is not None:
            self.starting.cancel()

    def restart(self, job: Stored[JobRecord]) -> None:
        """Go on with the job's next attempt; a stop asked for stands, unless its reason was the last one's health."""
        self.job, self.attempt, self.phase = job, job.record.attempt, HoldingPhase.RUNNING
        self.starting, self.task, self.unhealthy, self.activity, self.serves = None, None, "", "", False
        if self.stop is not None and self.stop[1] == ExitKind.UNHEALTHY:
            self.stop = None


@dataclass(slots=True)
class Leases:
    """All jobs that the agent holds, by id.

    Attributes:
        changed: set whenever a lease was added, removed or freed.
        gpus_out: places of the GPUs that are not to be used now, and why.
    """

    capacity: Resources
    held: dict[str, HeldLease] = field(default_factory=dict)
    gpus_out: dict[int, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, entry: PendingKey) -> HeldLease:
        """Reserve what the entry's job needs, before its claim is sent."""
        gpus = gpus_for(entry.shape, self.gpus_left())
        lease = self.held[entry.job] = HeldLease(entry, gpus=gpus)
        self.changed.set()
        return lease

    def remove(self, lease: HeldLease) -> None:
        """Release a lease about which nothing is left to do."""
        if self.held.get(lease.entry.job) is lease:
            del self.held[lease.entry.job]
        self.changed.set()

    def free(self) -> Resources:
        """What no held job uses; no cores where children run in their parents' room."""
        left = self.capacity
        for lease in self.held.values():
            left = left if lease.idle or lease.serves else remaining_after(left, lease.entry.shape)
        left = replace(left, cpu=max(left.cpu, 0))
        if not (gpus := self.gpus_left()):
            return left
        shares = sorted(rest for rest in gpus if 0 < rest < WHOLE)
        return replace(left, device_count=gpus.count(WHOLE), device_shares=shares)

    def gpus_left(self) -> list[int]:
        """Thousandths of each GPU of the host that no held job has; empty if it offers none."""
        count = self.capacity.device_count if self.capacity.device.startswith("gpu") else 0
        left = [0 if place in self.gpus_out else WHOLE for place in range(count)]
        for lease in self.held.values():
            for place in lease.gpus if not lease.idle else ():
                left[place] = max(left[place] - part_of_each(lease.entry.shape), 0)
        return left

    def has_alone(self, lease: HeldLease, place: int) -> bool:
        """Whether no other job at work has a part of the GPU."""
        return not any(place in other.gpus for other in self.held.values() if other is not lease and not other.idle)

    def use_again(self, lease: HeldLease) -> None:
        """Have an idle job use the host again, or be put back unstarted where others have taken its room."""
        if lease.idle:
            if shortage(lease.entry.shape, self.free(), HostKind()):
                lease.ask_to_stop(0.0, ExitKind.PREEMPTED)
            lease.gpus = gpus_for(lease.entry.shape, self.gpus_left())
        lease.idle = False

    def nothing_to_do(self) -> bool:
        """Whether the agent has ended all that it could."""
        return all(lease.abandoned for lease in self.held.values())

    def any_at_work(self) -> bool:
        return any(not lease.idle for lease in self.held.values())

    def holdings(self) -> dict[str, Holding]:
        """What the heartbeat lists."""
        return {
            job: Holding(
                attempt=lease.attempt,
                phase=lease.phase,
                usage=lease.task.usage if lease.task else None,
                activity=lease.activity,
                ports=dict(lease.ports),
                gpus=list(lease.gpus),
            )
            for job, lease in self.held.items()
        }
