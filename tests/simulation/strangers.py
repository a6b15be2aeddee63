"""Users of the bucket who do not know Fray's rules, and interrupted copies: they leave malformed objects.

Objects under names of their own harm nothing. Objects that they overwrite are harmed, and so is everything that cannot
be known without them: the jobs of an agent whose record is gone, the children of such a job. All others must go on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_coordinator.store.interface import ANY, AttemptFailed, Object, check_key
from fray_layouts import codec
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.object_keys import (
    AgentKeys,
    ArchiveKeys,
    CoordinatorKeys,
    EndpointKey,
    JobKeys,
    MachineKeys,
    NameKeys,
    PoolKeys,
    ReservationKeys,
)
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
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
)
from fray_layouts.work_keys import InboxKeys, WorkKeys
from tests.simulation.loop import Participant
from tests.simulation.work import drawn_spec
from tests.support.malformed_objects import odd_body, odd_object

if TYPE_CHECKING:
    from tests.simulation.world import World

_KEPT_BODIES = 4
"""Earlier bodies of each job's record that a restored backup may bring back."""

_KINDS: list[tuple[str, Callable[[str], object | None], type[Record] | None]] = [
    (JobKeys.area, JobKeys.parse, JobRecord),
    (ArchiveKeys.area, ArchiveKeys.parse, JobRecord),
    (AgentKeys.area, AgentKeys.parse, AgentRecord),
    (NameKeys.area, NameKeys.parse, NameRecord),
    (EndpointKey.area, EndpointKey.parse, EndpointRecord),
    (PoolKeys.area, PoolKeys.parse_doorbell, Doorbell),
    (PoolKeys.area, PoolKeys.parse_record, AgentPoolRecord),
    (CoordinatorKeys.reconciler, lambda key: key, ReconcilerRecord),
    (ReservationKeys.area, ReservationKeys.parse, ReservationRecord),
    (PoolKeys.area, PoolKeys.parse_plan, PoolPlan),
    (MachineKeys.area, MachineKeys.parse, MachineRecord),
    (MachineKeys.area, lambda key: MachineKeys.is_boot_log(key) or None, None),
    (WorkKeys.prefix("")[:-1], WorkKeys.parse_exit, ReplicaExit),
    (WorkKeys.prefix("")[:-1], lambda key: WorkKeys.parse(key) if WorkKeys.parse_exit(key) is None else None, None),
]
"""Kinds of objects that fsck must name if they are not what their name says."""


class Strangers:
    """Users of the bucket other than Fray.

    Attributes:
        owner: the participant that sends their writes.
        odd: keys of existing objects that strangers wrote or overwrote.
        overwritten: keys whose objects they ever overwrote.
        harmed: ids of jobs and agents whose records were overwritten, and of jobs that only those records named.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner = Participant("stranger")
        self.odd: set[str] = set()
        self.overwritten: set[str] = set()
        self.harmed: set[str] = set()
        self._draw = random.Random(f"strangers {world.seed}")
        self._bodies: dict[str, list[bytes]] = {}
        self._spoils = False

    # --- their actions

    def act(self) -> None:
        """Do one of the actions of this seed's strangers, now and then many at once."""
        habits = self.world.perils.habits
        how_many = self._draw.randint(5, 40) if self._draw.random() < 0.05 else 1
        for _ in range(how_many):
            getattr(self, self._draw.choices(list(habits), list(habits.values()))[0])()

    def leave_odd_object(self) -> None:
        odd = odd_object(self._draw, self._lying())
        if odd.key not in self.world.storage.contents.objects:
            self._put(odd.key, odd.data, "odd object")

    def copy_record(self) -> None:
        """Keep a copy of a record beside it."""
        records = self._lying(JobKeys.area, ArchiveKeys.area, AgentKeys.area, NameKeys.area, EndpointKey.area)
        if records:
            key, data = self._draw.choice(records)
            copy = f"{key.removesuffix('.json')}-{self._draw.choice(['bak', 'copy', '1'])}.json"
            if copy not in self.world.storage.contents.objects:
                self._put(copy, data, "copy")

    def copy_in_two_parts(self) -> None:
        """Copy a file into the inbox in two parts, so that it is incomplete for a while."""
        spec = msgspec.json.encode(drawn_spec(self._draw, "quick"))
        key = InboxKeys.key(f"copied-{self._draw.randrange(10**9)}")
        self._put(key, spec[: self._draw.randrange(len(spec))], "half-finished copy", odd=False)
        self.world._in(self._draw.uniform(0.1, 20), self._put, key, spec, "finished copy", False)

    def flood(self, how_many: int) -> None:
        """Copy a folder of other files into the inbox."""
        for number in range(how_many):
            self._put(InboxKeys.key(f"photo-{number}"), b'{"photo": %d}' % number, "file of a flood", odd=False)

    def spoil_hint(self) -> None:
        """Damage a doorbell or a pool's record, on which no job depends."""
        self._overwrite([key for key, _ in self._lying("pools/")])

    def spoil_entry(self) -> None:
        """Damage the body of an index entry, of which only the name matters."""
        self._overwrite([key for key, _ in self._lying("pending/", "children/")], odd=False)

    def spoil_pass(self) -> None:
        self._overwrite([CoordinatorKeys.reconciler])

    def spoil_job(self) -> None:
        jobs = [job for job in self.world.watching.jobs.values() if job.spec.name != "endless"]
        self._overwrite([JobKeys.key(job.id) for job in jobs])

    def spoil_agent(self) -> None:
        self._overwrite([key for key, _ in self._lying(AgentKeys.area)])

    def hold_agent(self) -> None:
        """Put an agent into a state that this version does not know; its beats say whether it lives."""
        key = self._drawn(
            [AgentKeys.key(name) for name, now in self.world.watching.agents.items() if now.state == "live"]
        )
        if key:
            self.overwritten.add(key)
            held = json.loads(self.world.storage.contents.objects[key].data) | {"state": "held"}
            self._put(key, json.dumps(held).encode(), "held")

    def restore_job(self) -> None:
        """Restore an earlier body of a record, like a backup."""
        jobs = [key for key in self._bodies if JobKeys.parse(key) in self.world.watching.jobs]
        if jobs:
            key = self._draw.choice(jobs)
            self.overwritten.add(key)
            self._harm(key)
            self._put(key, self._draw.choice(self._bodies[key]), "restored", odd=False)

    def spoil_archived(self) -> None:
        self._overwrite([key for key, _ in self._lying(ArchiveKeys.area)])

    def copy_into_archive(self) -> None:
        """Put a job's record, as it is or was, into the archive, as after a restore of some folders only."""
        jobs = [key for key in self._bodies if JobKeys.parse(key) in self.world.watching.jobs]
        if jobs:
            key = self._draw.choice(jobs)
            copy = ArchiveKeys.key(JobKeys.parse(key) or "")
            if copy not in self.world.storage.contents.objects:
                self._harm(copy)
                self._put(copy, self._draw.choice(self._bodies[key]), "copied into the archive")

    def touch(self) -> None:
        """Change only the storage's time of an object, like `chmod`, `touch` or a copy with the same content."""
        contents = self.world.storage.contents
        keys = [key for key, _ in self._lying() if not key.startswith(InboxKeys.area)]
        if keys:
            key = self._draw.choice(keys)
            lies = contents.objects[key]
            self._count("touched")
            self.world.note(self.owner.name, "touches", key)
            contents.set(key, Object(lies.data, lies.version, self.world.storage.clock.wall()))

    def tidy_some(self) -> None:
        """Remove malformed objects, like people.

        Records of live agents and running jobs only after these have ended.
        """
        idle = [key for key in sorted(self.odd) if not self.world.is_used(key)]
        for key in self._draw.sample(idle, min(3, len(idle))):
            self.remove(key)

    def tidy(self) -> None:
        """Remove all malformed objects."""
        for key in sorted(self.odd):
            self.remove(key)

    def remove(self, key: str) -> None:
        self._send(key, lambda: self.world.storage.backend.delete(key, ANY))

    # --- the consequences

    def wrote(self, key: str, after: Object | None, sender: Participant) -> None:
        """Note a change: objects that are no longer odd, and bodies for a later backup.

        A job's or an agent's record stays odd until it is removed, because later writes keep most of it.
        """
        stays = key.startswith((JobKeys.area, AgentKeys.area, InboxKeys.area)) or sender is self.owner
        if after is None or not stays:
            self.odd.discard(key)
        elif key.startswith(JobKeys.area) and not self.is_stranger(key):
            self._bodies.setdefault(key, []).append(after.data)
            del self._bodies[key][:-_KEPT_BODIES]

    def is_stranger(self, key: str) -> bool:
        """Whether the object was written by strangers, or changed after they wrote it."""
        return key in self.odd

    def changed(self, own_id: str) -> bool:
        """Whether the record of the job with this id may now differ from its submission."""
        return any(f"-{own_id}-" in job for job in self.harmed)

    def excuses(self, job: JobRecord) -> bool:
        """Whether nothing can end the job while malformed objects are in its way.

        A readable record of its agent is waited for like any other; one that cannot be read is soon given up.
        """
        if JobKeys.key(job.id) in self.odd:
            return True
        if job.status == Status.UNADMITTED and ArchiveKeys.key(job.id) in self.odd:
            return True  # nobody knows whether it has been admitted before
        if job.parent is None:
            return False
        above = self.world.watching.jobs.get(job.parent.job)
        return JobKeys.key(job.parent.job) in self.odd or (above is not None and self.excuses(above))

    def unnamed(self, named: Iterable[str]) -> list[str]:
        """The malformed objects that no problem of `fray fsck` names."""
        told = set(named)
        objects = self.world.storage.contents.objects
        misfits = [key for key in sorted(self.odd) if key in objects and is_misfit(key, objects[key].data)]
        return [key for key in misfits if key not in told and key.partition("/")[0] + "/" not in told]

    def is_readable(self, key: str) -> bool:
        """Whether a store accepts this name."""
        try:
            check_key(key)
        except InvalidInput:
            return False
        return True

    # --- inside

    def _lying(self, *prefixes: str) -> list[tuple[str, bytes]]:
        objects = self.world.storage.contents
        keys = [key for prefix in prefixes or ("",) for key in objects.keys(prefix, None)]
        return [(key, objects.objects[key].data) for key in keys if key != "cluster.json"]

    def _drawn(self, keys: list[str]) -> str:
        """One of the existing keys; "" if there is none."""
        known = [key for key in keys if key in self.world.storage.contents.objects]
        return self._draw.choice(known) if known else ""

    def _overwrite(self, keys: list[str], odd: bool = True) -> None:
        key = self._drawn(keys)
        if key:
            self.overwritten.add(key)
            if odd:
                self._harm(key)
            self._put(key, odd_body(self._draw, self.world.storage.contents.objects[key].data), "overwritten", odd)

    def _harm(self, key: str) -> None:
        watching = self.world.watching
        if job := JobKeys.parse(key) or ArchiveKeys.parse(key):
            self.harmed.add(job)
        if key.startswith(AgentKeys.area) and (agent := AgentKeys.parse(key)):
            self.harmed.add(agent)
            listed = watching.agents[agent].holdings if agent in watching.agents else {}
            held = [j.id for j in watching.jobs.values() if agent in holders_of(j)]
            self.harmed.update(listed, held, self.world.listed_by(agent))

    def _put(self, key: str, data: bytes, kind: str, odd: bool = True) -> None:
        if odd:
            self.odd.add(key)
        self._count(kind)
        self.world.note(self.owner.name, kind, f"{key!r:.80} {len(data)} bytes: {data[:200]!r}")
        self._send(key, lambda: self.world.storage.backend.put(key, data, ANY))

    def _send(self, key: str, act: Callable[[], Any]) -> None:
        try:
            self.world.storage.perform(key, act, self.owner, self.world.loop.now)
        except AttemptFailed:
            return

    def _count(self, kind: str) -> None:
        self.world.storage.faults[f"stranger: {kind}"] += 1


def holders_of(job: JobRecord) -> list[str]:
    """The holders of the job, by its record."""
    members = [member.agent for member in job.placement.members] if job.placement is not None else []
    return [job.lease.agent, *members] if job.lease is not None else members


def is_misfit(key: str, data: bytes) -> bool:
    """Whether the object is not what its name says, so that fsck must name it."""
    if key.startswith(InboxKeys.area):
        known = (InboxKeys.rejected_prefix, InboxKeys.aside_prefix, f"{InboxKeys.area}.")
        return not InboxKeys.is_drop(key) and not key.startswith(known)
    kinds = [(parse, kind) for prefix, parse, kind in _KINDS if key.startswith(prefix)]
    if not kinds:
        return key.endswith("/")
    return not any(parse(key) is not None and (kind is None or _holds(key, data, kind)) for parse, kind in kinds)


def _holds(key: str, data: bytes, kind: type[Record]) -> bool:
    try:
        record = codec.decode(data, kind).record
    except Malformed:
        return False
    match record:
        case JobRecord():
            is_archived = ArchiveKeys.key(record.id) == key and record.status in TERMINAL
            return is_archived or JobKeys.key(record.id) == key
        case AgentRecord():
            return AgentKeys.key(record.id) == key
        case ReservationRecord():
            return ReservationKeys.key(record.id) == key
        case EndpointRecord():
            return EndpointKey(record.namespace, record.name, record.actor_id).key() == key
        case MachineRecord():
            return MachineKeys.key(record.pool, record.name) == key
    return True
