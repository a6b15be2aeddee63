"""The real code with one rule about submitting, stopping and removing jobs switched off: all must be caught."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import job_archive, pending_index, stopping, submission
from fray_coordinator.jobs.submission import Submitted
from fray_coordinator.protocol import job_identity, retention, stopping as stop_rules
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.records import (
    Records,
    Stored,
    UpdateResult,
    record_of,
)
from fray_layouts import codec
from fray_layouts.object_keys import ArchiveKeys, JobIds, JobKeys
from fray_layouts.records import JobRecord
from tests.simulation.broken_code import Swap, Variants, everywhere
from tests.simulation.scenario import Habits, People

VARIANTS = Variants()
variant = VARIANTS.variant
where = VARIANTS.where


def files_come_and_change() -> list[Swap]:
    """A setting: people only drop files, overwrite them and take them back."""
    real = People.drawn

    def drawn(draw: random.Random, usual: dict[str, float]) -> People:
        habits = Habits({"drop": 3.0, "overwrite": 3.0, "take_back": 1.0})
        return dataclasses.replace(real(draw, usual), pause=1.0, habits=habits)

    return [(People, "drawn", staticmethod(drawn))]


# --- submission, children, inbox, retention


@variant
def a_reused_name() -> list[Swap]:
    """A job's id is its name and the minute."""
    return [(JobIds, "fresh", staticmethod(lambda name, now, token: f"{name}-{int(now // 60)}"))]


@variant
def child_before_its_index_entry() -> list[Swap]:
    """The `children/` entry is written a moment after the child."""
    real = submission.create_child_entry

    async def enter_child(core: Any, job: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.5)
            await real(core, job)

        asyncio.get_running_loop().create_task(later())

    return everywhere(real, enter_child)


@variant
def no_cascade() -> list[Swap]:
    """The code does not check whether a child's parent still runs."""
    return everywhere(stop_rules.judge_child, lambda *given: stop_rules.ChildVerdict.KEEP)


@variant
def no_repair() -> list[Swap]:
    """The pass repairs nothing."""

    async def run(self: Repair, live: Any) -> None:
        return None

    return [(Repair, "run", run)]


@where(files_come_and_change())
def admitted_without_a_second_read() -> list[Swap]:
    """A drop is admitted as it was read, even if the inbox has changed since."""
    real = job_identity.admit_or_withdraw
    return everywhere(real, lambda job, version, now: real(job, job.inbox.version if job.inbox else None, now))


@variant
def every_reader_admits_a_drop() -> list[Swap]:
    """Each reader gives a drop's job a new id."""
    real = job_identity.record_of_drop
    drawn = iter(range(10**9))

    def record_of_drop(*given: Any) -> Any:
        job = real(*given)
        return replace(job, id=f"{job.id}x{next(drawn)}")

    return everywhere(real, record_of_drop)


@variant
def a_drop_is_removed_before_it_is_admitted() -> list[Swap]:
    """The file is removed before its job is made."""
    real = Admission._admit

    async def admit(self: Admission, key: str, drop: Any, spec: Any) -> None:
        await self._take_away(key, drop.version)
        await real(self, key, drop, spec)

    return [(Admission, "_admit", admit)]


@variant
def parents_go_before_their_children() -> list[Swap]:
    """A record is archived although children of its job are left."""
    real = retention.may_archive

    def may_go(at: float, now: float, has_children: bool) -> bool:
        return real(at, now, False)

    return everywhere(real, may_go)


@variant
def records_are_deleted_before_they_are_archived() -> list[Swap]:
    """A record is deleted before its copy is written."""

    async def move(core: Core, job_id: str) -> None:
        if (job := await core.records.read(JobKeys.key(job_id), JobRecord, one_of_many=True)) is not None:
            await core.store.delete(job.key, job.version)
            await core.store.put(ArchiveKeys.key(job_id), codec.encode(job.record, job.raw), ANY)

    return [(job_archive, "archive", move)]


@variant
def archived_records_forget_the_end() -> list[Swap]:
    """The copy in the archive has no exit."""
    real = codec.encode

    def encode(record: Any, raw: Any = None) -> bytes:
        return real(replace(record, exit=None) if isinstance(record, JobRecord) else record, raw)

    return [(job_archive, "codec", SimpleNamespace(encode=encode))]


@variant
def a_submission_is_acknowledged_before_it_is_written() -> list[Swap]:
    """A submission returns when the index entry exists, although the record is not yet written."""
    real = Records.write

    async def write(self: Records, key: str, kind: Any, wanted: Any, current: Any, *more: Any) -> Any:
        if kind is not JobRecord or current is not None:
            return await real(self, key, kind, wanted, current, *more)
        asyncio.get_running_loop().create_task(real(self, key, kind, wanted, current, *more))
        return UpdateResult(Stored(key, wanted, {}, "", self._store.now()), True, 0)

    return [(Records, "write", write)]


@variant
def a_new_job_that_was_claimed_at_once_is_told_as_found() -> list[Swap]:
    """If the record differs from what the submitter wrote, it counts as another submission's."""
    real = submission.submit_one

    async def submit_one(core: Any, job: Any) -> Any:
        done = await real(core, job)
        return Submitted(done.job, done.job is not job)

    return everywhere(real, submit_one)


@variant
def a_stop_is_answered_before_it_is_written() -> list[Swap]:
    """A stop returns before its request is written."""
    real = stopping.stop_if

    async def stop_if(core: Any, key: str, *given: Any) -> Any:
        asyncio.get_running_loop().create_task(real(core, key, *given))
        return record_of(await core.records.read(key, JobRecord))

    return [(stopping, "stop_if", stop_if)]


@variant
def entries_are_left_to_a_repair_that_makes_none() -> list[Swap]:
    """A requeue only removes the old entry, and the repair makes no new one."""

    async def finish_requeue(core: Any, job: Any, before: Any) -> None:
        if before is not None:
            await pending_index.delete_entry(core, before)

    async def enter_if_missing(self: Repair, key: str, known: Any) -> None:
        return None

    return [(pending_index, "finish_requeue", finish_requeue), (Repair, "_enter_if_missing", enter_if_missing)]


@variant
def nobody_reads_the_inbox() -> list[Swap]:
    """Drops stay where they are."""

    async def handle(self: Admission, key: str) -> None:
        return None

    return [(Admission, "handle", handle)]


@variant
def nothing_is_ever_removed() -> list[Swap]:
    """Finished jobs are never removed."""
    return everywhere(retention.is_removable, lambda *given: False)


@variant
def names_go_before_the_quarantine() -> list[Swap]:
    """Finished jobs are removed before the quarantine, although a late write may land."""
    return everywhere(retention.retention_seconds, lambda settings: settings.retention)
