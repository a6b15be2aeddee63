"""What this agent holds, and what that leaves free. The heartbeat's list of holdings is derived from here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_agents.tasks.handle import TaskHandle
from fray_coordinator.protocol.scheduling import HostKind, remaining_after, shortage
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import PendingKey
from fray_layouts.records import Holding, JobRecord, Resources
from fray_layouts.states import ExitKind, HoldingPhase


@dataclass(slots=True, eq=False)
class HeldLease:
    """One job in this agent's hands, from before its claim is sent until nothing is left to do about it.

    Attributes:
        entry: what it was claimed by.
        attempt: the one that runs; a restart raises it.
        phase: as in the heartbeat: "claiming", "running", "ending".
        job: the record as last seen; None while the claim is not resolved.
        starting: what starts its task; a stop cancels it.
        task: its processes; None before they are started.
        stop: (grace in seconds, why) of a stop asked for before the task was started.
        entry_deleted: the index entry was removed since a beat listed this attempt.
        unhealthy: what the health check saw, once it has failed.
        idle: it uses nothing of the host: its task has ended and its end cannot be written, or its claim is in doubt.
        abandoned: its end cannot be written, and its agent leaves: others put it back once that is dead.
        serves: it takes no room because it waits for calls; see `lending`.
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
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self.attempt = self.entry.attempt

    @property
    def entry_in_index(self) -> PendingKey | None:
        """The entry, if it was not removed yet."""
        return None if self.entry_deleted else self.entry

    def ask_to_stop(self, grace: float, why: str) -> None:
        """Stop the task, or have it not started."""
        self.stop = self.stop or (grace, why)
        if self.task is not None:
            self.task.stop(grace, why)
        elif self.starting is not None:
            self.starting.cancel()

    def restart(self, job: Stored[JobRecord]) -> None:
        """Go on with the job's next attempt; a wish that it end stays, unless it was about the last one's health."""
        self.job, self.attempt, self.phase = job, job.record.attempt, HoldingPhase.RUNNING
        self.starting, self.task, self.unhealthy, self.serves = None, None, "", False
        if self.stop is not None and self.stop[1] == ExitKind.UNHEALTHY:
            self.stop = None


@dataclass(slots=True)
class Leases:
    """Everything this agent holds. `changed` is set whenever something was added, removed or freed."""

    capacity: Resources
    held: dict[str, HeldLease] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, entry: PendingKey) -> HeldLease:
        """Reserve what the entry's job needs, before its claim is sent."""
        held = self.held[entry.job] = HeldLease(entry)
        self.changed.set()
        return held

    def remove(self, held: HeldLease) -> None:
        """Nothing is left to do about it."""
        if self.held.get(held.entry.job) is held:
            del self.held[held.entry.job]
        self.changed.set()

    def free(self) -> Resources:
        """What no held job uses; no cores where children run in their parents' room."""
        left = self.capacity
        for held in self.held.values():
            left = left if held.idle or held.serves else remaining_after(left, held.entry.shape)
        return replace(left, cpu=max(left.cpu, 0))

    def use_again(self, held: HeldLease) -> None:
        """Have a job that was idle use the host, or, where others have its room meanwhile, be put back unstarted."""
        if held.idle and shortage(held.entry.shape, self.free(), HostKind()):
            held.ask_to_stop(0.0, ExitKind.PREEMPTED)
        held.idle = False

    def nothing_to_do(self) -> bool:
        """Whether this agent has ended all that it could."""
        return all(held.abandoned for held in self.held.values())

    def at_work(self) -> bool:
        """Whether anything held may still use the host."""
        return any(not held.idle for held in self.held.values())

    def holdings(self) -> dict[str, Holding]:
        """What the heartbeat lists."""
        return {
            job: Holding(attempt=held.attempt, phase=held.phase, usage=held.task.usage if held.task else None)
            for job, held in self.held.items()
        }
