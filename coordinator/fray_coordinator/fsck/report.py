"""What a check says: problems and their remedies, and which keys belong where in a root.

Some bodies are not read, only their keys: those that say nothing beyond their keys (index entries), and those that may
be large (logs, results, segments, outcomes of tasks).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fray_coordinator.core import Core
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey
from fray_layouts.object_keys import (
    CLUSTER_KEY,
    AgentKeys,
    ArchiveKeys,
    AsideKeys,
    BlobKeys,
    CoordinatorKeys,
    DoctorKeys,
    EndpointKey,
    JobKeys,
    KeptBlobKey,
    MachineKeys,
    NameKeys,
    PoolKeys,
    ReservationKeys,
    SecretKeys,
)
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.queue_records import PoolRecord, QueueLease, QueueRecord
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    ClusterSettings,
    Doorbell,
    EndpointRecord,
    JobRecord,
    MachineRecord,
    NameRecord,
    PoolPlan,
    ReconcilerRecord,
    Record,
    ReplicaExit,
    ReservationRecord,
    RpcSecrets,
    ScalerRecord,
)
from fray_layouts.work_keys import InboxKeys, WorkKeys

BY_REPAIR = "`fray fsck --repair` puts it right, and so does any live agent soon"
BY_FSCK = "`fray fsck --repair` puts it right"
BY_SWEEP = "`fray fsck --repair` removes it"
BY_SETTING_ASIDE = "`fray fsck --repair` sets it aside under aside/, from where it can be moved back"
BY_HAND = "look at it, and remove it if nobody needs it"


@dataclass(frozen=True, slots=True)
class Problem:
    """An inconsistency. key: key of the object; what, remedy: for people."""

    key: str
    what: str
    remedy: str


Fix = Callable[[Core], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Moved:
    """An unreadable object that the repair has set aside: the key that it had, and the key that it has."""

    key: str
    to: str


@dataclass(frozen=True, slots=True)
class SuspectedProblem:
    """A problem as one snapshot shows it.

    Attributes:
        versions: versions of the records that it was concluded from. If a second snapshot shows the same problem with
            the same versions, it is not a transient state.
        fix: what `repair` does about it; None if the services do it, or nobody may.
    """

    problem: Problem
    versions: tuple[str, ...] = ()
    fix: Fix | None = None


Kind = type[Record]


class NameOnly(Record):
    """The kind of objects that are known by their keys alone."""


class DroppedFile(Record):
    """The kind of files that people drop into the inbox; they are read as plain bytes."""


@dataclass(frozen=True, slots=True)
class Area:
    """A top-level folder. kind: gives the kind of a key's object; None for keys that Fray never uses there."""

    prefix: str
    kind: Callable[[str], Kind | None]
    versions: bool = False


def _named(parse: Callable[[str], object | None], kind: Kind) -> Callable[[str], Kind | None]:
    return lambda key: None if parse(key) is None else kind


def _only(one: str, kind: Kind) -> Callable[[str], Kind | None]:
    return lambda key: kind if key == one else None


def _of_inbox(key: str) -> Kind | None:
    """Files whose names begin with a dot are still being written."""
    if InboxKeys.is_drop(key):
        return DroppedFile
    ours = InboxKeys.parse_aside(key) or InboxKeys.is_rejection(key)
    return NameOnly if ours or key.startswith(f"{InboxKeys.area}.") else None


def _of_queue(key: str) -> Kind | None:
    queue = QueueKeys.around(key)
    if queue is None:
        return None
    if key in (queue.settings, queue.doorbell):
        return QueueRecord if key == queue.settings else Doorbell
    if key.startswith(queue.segments) and (segment := queue.parse(key)) is not None:
        return QueueLease if segment[1] else NameOnly
    if key.startswith(queue.finished):
        return NameOnly if queue.finished_time(key) is not None else None
    if key.startswith(queue.receipts):
        return NameOnly if queue.receipt_time(key) is not None else None
    return NameOnly if key.startswith(queue.all_large) and queue.parse_large(key) else None


def _of_pool(key: str) -> Kind | None:
    if PoolKeys.parse_plan(key):
        return PoolPlan
    return AgentPoolRecord if PoolKeys.parse_record(key) else Doorbell if PoolKeys.parse_doorbell(key) else None


def _of_work(key: str) -> Kind | None:
    if WorkKeys.parse(key) is None:
        return None
    return NameOnly if WorkKeys.parse_exit(key) is None else ReplicaExit


def _of_placements(key: str) -> Kind | None:
    return Doorbell if key == PlacementKey.bell else NameOnly if PlacementKey.parse(key) else None


def _of_tasks(key: str) -> Kind | None:
    tasks = TaskKeys.around(key)
    return None if tasks is None else PoolRecord if key == tasks.pool else NameOnly


def _of_coordinator(key: str) -> Kind | None:
    return ScalerRecord if key == CoordinatorKeys.scaler else _only(CoordinatorKeys.reconciler, ReconcilerRecord)(key)


def _of_machines(key: str) -> Kind | None:
    return MachineRecord if MachineKeys.parse(key) else NameOnly if MachineKeys.is_boot_log(key) else None


AREAS = (
    Area(AsideKeys.area, _named(AsideKeys.parse, NameOnly)),
    Area(InboxKeys.area, _of_inbox),
    Area(WorkKeys.area, _of_work),
    Area(BlobKeys.area, _named(lambda key: BlobKeys.parse(key) or KeptBlobKey.parse(key), NameOnly)),
    Area(PendingKey.area, _named(PendingKey.parse, NameOnly)),
    Area(PlacementKey.area, _of_placements),
    Area(ChildKey.area, _named(ChildKey.parse, NameOnly)),
    Area(CoordinatorKeys.area, _of_coordinator),
    Area(PoolKeys.area, _of_pool),
    Area(SecretKeys.area, _only(SecretKeys.rpc, RpcSecrets)),
    Area(NameKeys.area, _named(NameKeys.parse, NameRecord)),
    Area(QueueKeys.area, _of_queue),
    Area(TaskKeys.area, _of_tasks),
    Area(EndpointKey.area, _named(EndpointKey.parse, EndpointRecord), versions=True),
    Area(ReservationKeys.area, _named(ReservationKeys.parse, ReservationRecord), versions=True),
    Area(MachineKeys.area, _of_machines),
    Area(AgentKeys.area, _named(AgentKeys.parse, AgentRecord), versions=True),
    Area(JobKeys.area, _named(JobKeys.parse, JobRecord), versions=True),
    Area(ArchiveKeys.area, _named(ArchiveKeys.parse, JobRecord), versions=True),
)
"""The order of a snapshot: data before the records that it belongs to, indexes before the records that they point at,
agents before jobs, so that a job that did not change meanwhile was held when its holder's record was read, and the
archive last, because records move there from the jobs."""

TOP_LEVEL = frozenset({CLUSTER_KEY, DoctorKeys.area, *(area.prefix for area in AREAS)})
"""All names that Fray uses directly under a root."""

SET_ASIDE: frozenset[Kind] = frozenset({JobRecord, ReservationRecord, EndpointRecord, ReplicaExit, PoolPlan})
"""Kinds of unreadable objects that the repair may move out of the way, as long as nothing that lives depends on them.
Without any other kind, a name's incarnation, a machine, the items of a queue or a live agent's leases would be lost."""

CONSEQUENCES: dict[Kind, tuple[str, str]] = {
    DroppedFile: (
        "nobody can admit this file, so it becomes no job",
        "give agents the right to read it, or drop it again",
    ),
    ReconcilerRecord: (
        "until it is replaced, no file is admitted, no dead agent is found and nothing is repaired",
        "any live agent replaces it within a minute; if none does, start one",
    ),
    JobRecord: ("nobody can run, end or remove this job", "mend it, or remove it if nobody needs the job"),
    AgentRecord: (
        "this agent cannot work; if it is gone, the jobs that it held are requeued only after 20 idle intervals",
        "remove it once that agent has ended, and they are requeued within minutes",
    ),
    NameRecord: (
        "nobody can take this name or find who has it",
        "restore its content; before you remove it, end all uses of the name, because its incarnation restarts at 1",
    ),
    EndpointRecord: ("no caller finds this actor", "remove it and stop the actor's job, or start the actor again"),
    ReservationRecord: (
        "nobody gathers, renews or ends this reservation, and its jobs wait",
        "mend it, or remove it and stop its jobs, which `fray ps` shows",
    ),
    ReplicaExit: (
        "nobody knows how this replica of a gang ended: if the attempt was not over, it counts as preempted",
        "nothing brings it back; remove it",
    ),
    MachineRecord: (
        "the scaler makes and removes no machines in this machine's pool",
        "mend it, or remove it: the scaler then deletes the machine",
    ),
    ScalerRecord: (
        "no machine is made or removed",
        "remove it, and the scaler starts again, except for pools that may no longer have machines",
    ),
    PoolPlan: ("it is a hint; without it agents learn of gangs later", "remove it, and the reconciler writes it again"),
    Doorbell: ("it is a hint; without it work is found later", "the next process that rings replaces it"),
    AgentPoolRecord: (
        "agents that join this pool build nothing before they claim, and no unneeded blob is removed",
        "remove it, and name the pool's environments again: fray env warm --pool POOL",
    ),
    ClusterSettings: ("nobody can join or open this cluster", "restore its content, see the storage contract"),
    RpcSecrets: ("no actor can be called", "remove it, a new one is made at once"),
    QueueRecord: ("nobody can open this queue", "restore its content, see the storage contract"),
    QueueLease: (
        "nobody gets the items of this segment",
        "remove it; items of the segment that were done are then handed out again",
    ),
    PoolRecord: ("no driver can continue with this worker pool", BY_HAND),
}
"""By kind: what fails while such an object is unreadable, and the remedy."""
