"""Checkpoints of durable actors in the store. `protocol.naming` decides what is written, and when to stop.

An object is one line of JSON, the head, followed by the state's bytes.
"""

from dataclasses import dataclass, field

import msgspec

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, Fenced, StoreError, StoreUnavailable
from fray_coordinator.protocol.naming import Checkpoint, checkpoint, fence, landed_before
from fray_coordinator.store.interface import ABSENT, NOT_MODIFIED, Applied, Object, Outcome, Version
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.records import CheckpointHead
from fray_layouts.work_keys import CheckpointKey


@dataclass(slots=True)
class CheckpointLog:
    """An actor's checkpoints, written only by its latest attempt; made by `open_log`; for one task at a time."""

    core: Core
    job: str
    actor: str
    last: Checkpoint
    _old: list[int] = field(default_factory=list)

    async def write(self, state: bytes) -> None:
        """Make `state` durable. Once this returns, the calls that led to the state may be acknowledged.

        Raises:
            Fenced: a later attempt has taken over; nothing more may be acknowledged.
            StoreUnavailable: unresolved; call again, with this state or a later one, before anything is acknowledged.
        """
        while True:
            wanted = checkpoint(self.last, state)
            outcome = await _create(self.core, self.job, self.actor, wanted)
            await self.core.store.confirm_root()
            if isinstance(outcome, Applied):
                version = outcome.version
            else:  # what was in the way may have been another cluster's, or is collected: then the list will say so
                found = await self.core.store.get(self._key(wanted.number))
                if found is None:
                    continue
                if not landed_before(_decoded(wanted.number, found), wanted):
                    raise _fenced(self.job, self.actor)
                version = found.version
            if not await _is_highest(self.core, self.job, self.actor, wanted.number, version):
                raise _fenced(self.job, self.actor)
            self._advance(wanted)
            if isinstance(outcome, Applied):
                await self._collect()
                return

    def _advance(self, made: Checkpoint) -> None:
        self._old.append(self.last.number)
        self.last = made

    async def _collect(self) -> None:
        """Delete checkpoints that nobody will restore; the next write repeats a delete that failed."""
        try:
            await map_concurrently(self._old, lambda number: self.core.store.delete(self._key(number)))
            self._old.clear()
        except StoreError:
            pass

    def _key(self, number: int) -> str:
        return CheckpointKey(self.job, self.actor, number).key()


async def open_log(core: Core, job: str, actor: str, attempt: int) -> tuple[bytes | None, CheckpointLog]:
    """Restore the actor's last state (None: there is none) and fence earlier attempts off.

    Args:
        actor: name of the sequence within the job.
        attempt: attempt of the job that this process belongs to.

    Raises:
        Fenced: a later attempt has opened the log.
        StoreUnavailable: call again.
    """
    writer = core.rng.unique_id()
    while True:
        numbers, found = await _list_numbers(core, job, actor), None
        if numbers and (found := await _confirmed(core, CheckpointKey(job, actor, numbers[-1]).key())) is None:
            continue
        wanted = fence(_decoded(numbers[-1], found) if numbers else None, attempt, writer)
        if wanted is None:
            raise _fenced(job, actor)
        outcome = await _create(core, job, actor, wanted)
        if isinstance(outcome, Applied):
            await core.store.confirm_root()
            if await _is_highest(core, job, actor, wanted.number, outcome.version):
                return wanted.state, CheckpointLog(core, job, actor, wanted, numbers)


async def _list_numbers(core: Core, job: str, actor: str) -> list[int]:
    rows = await core.store.list(CheckpointKey.prefix(job, actor))
    return [found.number for row in rows if (found := CheckpointKey.parse(row.key)) is not None]


async def _is_highest(core: Core, job: str, actor: str, number: int, version: Version) -> bool:
    """Whether there is no higher checkpoint than the one that was just written, or found, at this version.

    The caller has confirmed the root since. So if another cluster was there at the write, the root has shown it, or the
    list does now.

    Raises:
        StoreUnavailable: this cluster does not have the checkpoint at this version.
    """
    before = CheckpointKey(job, actor, number - 1).key()
    rows = await core.store.list(CheckpointKey.prefix(job, actor), before, versions=True)
    found = {key.number: row.version for row in rows if (key := CheckpointKey.parse(row.key)) is not None}
    if max(found, default=0) > number:
        return False
    if found.get(number) != version:
        why = "another cluster was at the root, or lists and writes do not agree on versions: see `fray doctor`"
        raise StoreUnavailable(f"checkpoint {number} of {actor} is not in the list as it was written; {why}")
    return True


async def _confirmed(core: Core, key: str) -> Object | None:
    """The object, if this cluster has it as it was read.

    None: it was deleted since it was listed, so there is a higher checkpoint; or another cluster was at the root when
    it was read, such as a copy of this one.
    """
    found = await core.store.get(key)
    await core.store.confirm_root()
    if found is None or await core.store.get_if_changed(key, found.version) is not NOT_MODIFIED:
        return None
    return found


async def _create(core: Core, job: str, actor: str, wanted: Checkpoint) -> Outcome:
    head = CheckpointHead(attempt=wanted.attempt, writer=wanted.writer, fence=wanted.fence, empty=wanted.state is None)
    body = msgspec.json.encode(head) + b"\n" + (wanted.state or b"")
    return await core.store.put(CheckpointKey(job, actor, wanted.number).key(), body, ABSENT)


def _decoded(number: int, found: Object | None) -> Checkpoint | None:
    if found is None:
        return None
    line, _, state = found.data.partition(b"\n")
    try:
        head = codec.decode(line, CheckpointHead).record
    except Malformed as error:
        raise BadRecord(f"checkpoint {number} is damaged: {error}; look at it, then remove it") from None
    return Checkpoint(number, head.attempt, head.writer, head.fence, None if head.empty else state)


def _fenced(job: str, actor: str) -> Fenced:
    return Fenced(f"a later attempt of job {job} goes on from the checkpoints of {actor}; this process should end")
