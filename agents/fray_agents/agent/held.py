"""The holdings of an agent, from before others see them: claimed jobs, and bundles of gangs and reservations."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from fray_agents.tasks.task_handle import TaskHandle
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.scheduling import resources_of
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import Holding, JobRecord, ReservationRecord, root_of, total_usage
from fray_layouts.states import ExitKind, HoldingPhase, ReservationState
from fray_runtime.network import HeldPorts


@dataclass(slots=True, eq=False, kw_only=True)
class HeldTask(ABC):
    """One task of this host and what it holds of the host; a bundle of a reservation has room but no task.

    Attributes:
        starting: the coroutine that starts the task; a stop cancels it.
        task: None before it is started.
        stop: (grace in seconds, exit kind) of the first stop that was asked for.
        unhealthy: the failed health check's message; "" while the task is healthy.
        activity: what is done before the task starts, as text for people; "" if there is nothing to show.
        gpus: indices of its GPUs among those of the host.
        ports: its ports, by name.
        resources: everything else that it holds of the host; released when it is over.
        room: the reservation in whose bundles it runs; None: the host's own room.
        idle: it uses nothing of the host: its task has ended but the end cannot be written, or its claim is in doubt.
    """

    starting: asyncio.Task[TaskHandle | None] | None = None
    task: TaskHandle | None = None
    stop: tuple[float, str] | None = None
    unhealthy: str = ""
    activity: str = ""
    gpus: tuple[int, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    room: "HeldPlacement | None" = None
    idle: bool = False

    @property
    def replica(self) -> int:
        """Its replica number within its job."""
        return 0

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The resources that it takes from its room."""

    @property
    @abstractmethod
    def takes_room(self) -> bool:
        """Whether it uses its room now."""

    def ask_to_stop(self, grace: float, why: str) -> None:
        """Stop the task, or keep it from being started.

        Args:
            grace: seconds between SIGTERM and SIGKILL.
            why: the exit kind of the attempt.
        """
        self.stop = self.stop or (grace, why)
        if self.task is not None:
            self.task.stop(grace, why)
        elif self.starting is not None:
            self.starting.cancel()


@dataclass(slots=True, eq=False)
class HeldLease(HeldTask):
    """One job that the agent holds, from before its claim is sent until nothing is left to do for it.

    Attributes:
        entry: the index entry with which it was claimed.
        attempt: the attempt that runs; a restart raises it.
        phase: as in the heartbeat.
        job: the record as last seen; None while the claim is not resolved.
        entry_deleted: the index entry was deleted after a beat had listed this attempt.
        abandoned: its end cannot be written and the agent leaves; other agents requeue it once the agent is dead.
        serves: it takes no room because it waits for calls; see `overcommit`.
    """

    entry: PendingKey
    phase: str = HoldingPhase.CLAIMING
    job: Stored[JobRecord] | None = None
    entry_deleted: bool = False
    abandoned: bool = False
    serves: bool = False
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self.attempt = self.entry.attempt

    @property
    def shape(self) -> Shape:
        return self.entry.shape

    @property
    def takes_room(self) -> bool:
        return not (self.idle or self.serves)

    @property
    def entry_in_index(self) -> PendingKey | None:
        """The index entry; None if it was deleted."""
        return None if self.entry_deleted else self.entry

    @property
    def ends_by(self) -> float | None:
        """The storage time at which its timeout ends the attempt at the latest; None: it has no timeout."""
        return _ends_by(self.job.record) if self.job is not None else None

    def restart(self, job: Stored[JobRecord]) -> None:
        """Go on with the job's next attempt; a stop that was asked for remains, unless the last health check asked."""
        self.job, self.attempt, self.phase = job, job.record.attempt, HoldingPhase.RUNNING
        self.starting, self.task, self.unhealthy, self.activity, self.serves = None, None, "", "", False
        if self.stop is not None and self.stop[1] == ExitKind.UNHEALTHY:
            self.stop = None

    def holding(self) -> Holding:
        """The entry for the heartbeat."""
        lease = self.job.record.lease if self.job is not None else None
        return Holding(
            attempt=self.attempt,
            phase=self.phase,
            usage=self.task.usage if self.task else None,
            activity=self.activity,
            ports=dict(self.ports),
            gpus=list(self.gpus),
            ends_by=self.ends_by,
            family=_family_of(self.job.record) if self.job is not None else "",
            since=lease.since if lease is not None else None,
            takes=resources_of(self.shape) if self.takes_room else None,
            within=self.room.owner.id if self.room is not None else "",
        )


@dataclass(slots=True, eq=False)
class HeldBundle(HeldTask):
    """Room for one bundle: for a replica of a gang, with its task, or for the jobs of a reservation.

    Attributes:
        number: the bundle's number within its owner; for a gang, the replica's number.
        wants: the resources that it takes from a host.
        taken: it has its room. Until then it waits, and later jobs do not get the room that becomes free.
        exit_stored: others can see how its replica has ended.
    """

    number: int
    wants: Shape
    taken: bool = False
    exit_stored: bool = False

    @property
    def replica(self) -> int:
        return self.number

    @property
    def shape(self) -> Shape:
        return self.wants

    @property
    def takes_room(self) -> bool:
        return self.taken


@dataclass(slots=True, eq=False)
class HeldPlacement:
    """The bundles of one owner that are assigned to this agent, from when it reads so until nothing of them is left.

    Attributes:
        owner: the owner, as its record was when last read.
        record: that record.
        bundles: all bundles for which this agent has room, or waits for it.
        phase: as in the heartbeat; "" while it waits for room and is not listed.
        ports: free ports of this host, which the owner's record tells the other members.
        resources: everything that it holds of the host besides its tasks; released when it is over.
        vote_reported: the agent that runs the pass was told of the vote.
        abandoned: its end cannot be written and the agent leaves; others go on once the agent is dead.
    """

    owner: Owner
    record: Stored[JobRecord] | Stored[ReservationRecord]
    bundles: tuple[HeldBundle, ...]
    phase: str = ""
    ports: HeldPorts | None = None
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    vote_reported: bool = False
    abandoned: bool = False
    attempt: int = field(init=False)
    round: int = field(init=False)

    def __post_init__(self) -> None:
        self.attempt, self.round = self.owner.attempt, self.owner.placement.round

    @property
    def listed(self) -> bool:
        """Whether the heartbeat lists it."""
        return self.phase != ""

    @property
    def waits(self) -> bool:
        """Whether some of its bundles wait for room, which is kept for them."""
        return self.phase != HoldingPhase.REFUSED and not all(bundle.taken for bundle in self.bundles)

    @property
    def gathers(self) -> bool:
        """Whether room is kept for it that it does not use yet: it waits for room, or for its start."""
        return self.waits or (self.owner.forming and self.phase == HoldingPhase.RESERVED)

    @property
    def at_work(self) -> bool:
        """Whether its tasks run, or their end is not written yet."""
        return self.phase in (HoldingPhase.RUNNING, HoldingPhase.ENDING)

    @property
    def has_news(self) -> bool:
        """Whether a replica has ended here and others cannot see yet how."""
        return any(b.task is not None and b.task.exit.done() and not b.exit_stored for b in self.bundles)

    def ask_to_stop(self, grace: float, why: str) -> None:
        """Stop all its tasks, or keep them from being started; see `HeldTask.ask_to_stop`."""
        for bundle in self.bundles:
            bundle.ask_to_stop(grace, why)

    def kill(self) -> None:
        """Kill all its tasks."""
        for bundle in self.bundles:
            if bundle.task is not None:
                bundle.task.kill()

    @property
    def grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL of its tasks."""
        job = self.record.record
        return job.spec.grace if isinstance(job, JobRecord) else 0.0

    def holding(self) -> Holding:
        """The entry for the heartbeat; a gang that has lost a replica here is shown as ending."""
        return Holding(
            attempt=self.attempt,
            phase=HoldingPhase.ENDING if self.at_work and self.has_news else self.phase,
            usage=total_usage(bundle.task.usage for bundle in self.bundles if bundle.task is not None),
            activity=next((bundle.activity for bundle in self.bundles if bundle.activity), ""),
            gpus=[place for bundle in self.bundles for place in bundle.gpus],
            ports=self.ports.numbers if self.ports else {},
            round=self.round,
            bundles=[bundle.number for bundle in self.bundles if bundle.taken],
            ends_by=self.ends_by,
            family=_family_of(self.record.record),
            since=self.since,
            within=self.bundles[0].room.owner.id if self.bundles and self.bundles[0].room is not None else "",
        )

    @property
    def since(self) -> float | None:
        """The storage's time since which a gang runs, or a held reservation exists; None while it is only voted for."""
        record = self.record.record
        if isinstance(record, ReservationRecord):
            return record.submitted_at if record.state != ReservationState.FORMING else None
        return record.started_at if self.at_work else None

    @property
    def ends_by(self) -> float | None:
        """The storage time at which a gang's timeout ends it at the latest; None: it does not run, or has none."""
        job = self.record.record
        return _ends_by(job) if isinstance(job, JobRecord) and self.at_work else None


def _family_of(record: JobRecord | ReservationRecord) -> str:
    """The topmost job above a job or a reservation, as a heartbeat names it; "" if there is none."""
    return root_of("", record.ancestors)


def _ends_by(job: JobRecord) -> float | None:
    if job.started_at is None or job.spec.timeout is None:
        return None
    return job.started_at + job.spec.timeout + job.spec.grace
