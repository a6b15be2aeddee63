"""Admits the inbox: dropped files become jobs, or are rejected with the reason beside them.

`protocol.job_identity` has the decisions. This module remembers what must be seen twice: a file that does not parse may
still be incomplete, so it is rejected only after it was unchanged in two reads. One run handles every file that was
there when it began, so every file has its turn, however many are dropped.
"""

from dataclasses import dataclass, field

import msgspec

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import ParentNotRunning, ParentWaits, ReservationNotFound
from fray_coordinator.jobs import notifications, pending_index
from fray_coordinator.jobs.job_archive import find_archived, find_record
from fray_coordinator.jobs.submission import create_child_entry, not_running
from fray_coordinator.placements.launching import ReservationRouter
from fray_coordinator.protocol.job_identity import (
    ParentVerdict,
    admit_or_withdraw,
    check_resubmission,
    judge_parent,
    record_of_drop,
)
from fray_coordinator.protocol.retention import retention_seconds
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import ABSENT, Object
from fray_coordinator.store.paging import list_pages
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.object_keys import JobKeys
from fray_layouts.parsing import parse_json
from fray_layouts.records import JobRecord, ParentLink, Rejection, ancestors_of_child
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import check_whole_slices, parse_spec
from fray_layouts.work_keys import InboxKeys

MAX_CONCURRENT_FILES, MAX_CONCURRENT_LOCAL_FILES = 16, 2
"""Files that are handled at a time. Few threads read and write local files, and heartbeats need them too."""

REJECTION_SWEEP_INTERVAL = 600.0
"""Seconds between two sweeps of old rejections; there may be many of them, and they are kept for a month."""

_MAX_REJECTED_CONTENT = 64 * 1024
"""Bytes of a rejected file that its rejection repeats: usually the whole spec, but not a pickle of megabytes."""


@dataclass(slots=True)
class Admission:
    """Admits the files of the inbox, and remembers the unreadable ones it has seen, and since when.

    Attributes:
        problems: by key, the errors of the last run.
    """

    core: Core
    problems: dict[str, str] = field(default_factory=dict)
    _router: ReservationRouter = field(default_factory=ReservationRouter)
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    _rejections_seen_at: float = float("-inf")

    @property
    def waiting(self) -> bool:
        """Whether some file must be read again before it can be judged."""
        return bool(self._seen)

    async def run(self) -> None:
        """Handle every file in the inbox, and from time to time remove old rejections."""
        keys = await self._drops()
        problems: dict[str, str] = {}
        self._seen = {key: self._seen[key] for key in keys if key in self._seen}
        await map_noting_problems(
            keys,
            self.handle,
            problems,
            at_once=MAX_CONCURRENT_LOCAL_FILES if self.core.store.local else MAX_CONCURRENT_FILES,
        )
        await self._remove_old_rejections(problems)
        self.problems = problems

    async def handle(self, key: str) -> None:
        """Handle one key under `inbox/`."""
        if InboxKeys.is_drop(key):
            await self._handle_drop(key)
        elif InboxKeys.parse_aside(key):
            await self._handle_aside(key)

    async def _drops(self) -> list[str]:
        """The keys in the inbox except rejections. If these fill a page of the listing, the rest of them is skipped."""

        def skip_rejections(last: str) -> str:
            return InboxKeys.behind_rejections if last.startswith(InboxKeys.rejected_prefix) else last

        pages = list_pages(self.core.store, InboxKeys.area, next_after=skip_rejections)
        keys = [row.key async for page in pages for row in page]
        return [key for key in keys if not key.startswith(InboxKeys.rejected_prefix)]

    async def _remove_old_rejections(self, problems: dict[str, str]) -> None:
        """Remove rejections that are older than the time for which finished jobs are kept."""
        now = self.core.now()
        if now - self._rejections_seen_at < REJECTION_SWEEP_INTERVAL:
            return
        rows = await self.core.store.list(InboxKeys.rejected_prefix, versions=True)
        kept_since = now - retention_seconds(self.core.settings)
        old = [row.key for row in rows if InboxKeys.is_rejection(row.key) and (row.updated or now) < kept_since]
        await map_noting_problems(old, self.core.store.delete, problems)
        self._rejections_seen_at = now

    async def settle_record(self, job: Stored[JobRecord]) -> None:
        """Admit or withdraw an unadmitted record, depending on what the inbox holds now, and finish what follows.

        If the job is archived, the record is deleted: an agent read the file, slept, and created it after all was over.
        """
        origin = job.record.inbox
        if origin is None:
            return
        if (
            job.record.status == Status.UNADMITTED
            and (old := await find_archived(self.core, job.record.id)) is not None
        ):
            await self.core.store.delete(job.key, job.version)
            if old.record.inbox == origin:
                await self._take_away(origin.current_key, origin.version)
            return
        present = await self.core.store.get(origin.current_key)
        version = present.version if present else None

        def decide(now: JobRecord | None) -> JobRecord | None:
            if now is None or now.op != job.record.op:
                return None  # the record has changed since it was read; the next run decides
            return admit_or_withdraw(now, version, self.core.now())

        update = await self.core.records.update(job.key, JobRecord, decide, known=job, one_of_many=True)
        settled = record_of(update.stored)
        if settled is None or settled.status == Status.UNADMITTED:
            return
        if settled.status == Status.PENDING:
            await pending_index.create_entry(self.core, settled)
            await notifications.ring(self.core, settled.spec.pool)
        elif settled.status == Status.GATHERING:
            await notifications.enter(self.core, settled)
            await notifications.ring_placements_bell(self.core)
        if version == origin.version:
            await self._take_away(origin.current_key, origin.version)

    async def _handle_drop(self, key: str) -> None:
        drop = await self.core.store.get(key, one_of_many=True)
        if drop is None:
            return
        if not _is_json_object(drop.data) and not self._lay_still(key, drop.version):
            return
        try:
            spec = parse_spec(drop.data)
            check_whole_slices(spec)
            if self.core.store.renames and InboxKeys.staged_at(key) is None:
                await self._take_in(key, drop.version)
            else:
                await self._admit(key, drop, spec)
        except (InvalidInput, ParentNotRunning, ReservationNotFound) as error:
            await self._reject(key, drop, str(error))

    async def _take_in(self, key: str, version: str) -> None:
        """Move a local file to a key that is never used again; whoever moves it first continues with it."""
        staged_key = InboxKeys.staged(key, self.core.now(), self.core.rng.token())
        await self.core.store.withdraw(key, version, staged_key)
        await self._handle_drop(staged_key)

    async def _admit(self, key: str, drop: Object, spec: JobSpec) -> None:
        """Make a job of a file; or finish an admission whose agent died, whatever has become of the parent since."""
        parent = record_of(await find_record(self.core, spec.parent, one_of_many=True)) if spec.parent else None
        dropped_at = InboxKeys.staged_at(key) if self.core.store.renames else None
        job = record_of_drop(key, drop.version, dropped_at or drop.updated, spec, parent)
        verdict = judge_parent(spec, parent)
        if verdict is not ParentVerdict.RUNS or spec.id:  # else `settle_record` finds a job that was archived
            known = await find_record(self.core, job.id, one_of_many=True)
            if known is not None:
                await self._finish(key, drop, known, job)
                return
        if verdict is ParentVerdict.OVER:
            raise not_running(spec.parent, parent)
        if verdict is ParentVerdict.WAITS:
            raise ParentWaits(f"it waits for its parent {spec.parent} to run; the file is rejected if that ends first")
        (job.spec,) = await self._router.route(self.core, [job.spec])
        if parent is not None:
            job.parent = ParentLink(job=parent.id, attempt=parent.attempt, detached=spec.detached)
            job.ancestors = ancestors_of_child(parent.ancestors, parent.id)
            await create_child_entry(self.core, job)
        written = await self.core.records.write(JobKeys.key(job.id), JobRecord, job, None, one_of_many=True)
        if written.stored is not None:
            await self._finish(key, drop, written.stored, job)

    async def _finish(self, key: str, drop: Object, known: Stored[JobRecord], job: JobRecord) -> None:
        """Finish a drop that has the record `known`; `job` is the record that was wanted for it."""
        if known.record.inbox == job.inbox:
            await self.settle_record(known)
        else:  # a resubmission under the same `id`: the first job also answers this drop
            check_resubmission(known.record, job)
            await self._take_away(key, drop.version)

    async def _reject(self, key: str, drop: Object, reason: str) -> None:
        content = drop.data[:_MAX_REJECTED_CONTENT].decode("utf-8", "replace")
        rejection = Rejection(
            key=InboxKeys.dropped_as(key), reason=reason, rejected_at=self.core.now(), content=content
        )
        await self.core.store.put(InboxKeys.rejected(key, drop.version), msgspec.json.encode(rejection), ABSENT)
        await self._take_away(key, drop.version)

    async def _take_away(self, key: str, version: str) -> None:
        await self.core.store.withdraw(key, version, InboxKeys.aside(key, version, self.core.rng.token(8)))

    async def _handle_aside(self, key: str) -> None:
        """Check a local file that was moved aside. It is deleted, unless a `cp` went on writing into it."""
        parsed = InboxKeys.parse_aside(key)
        present = await self.core.store.get(key, one_of_many=True)
        if parsed is None or present is None or not self._lay_still(key, present.version):
            return
        stem, handled = parsed
        if present.version != handled:
            await self.core.store.put(InboxKeys.key(f"{stem}-{present.version[:8]}"), present.data, ABSENT)
        await self.core.store.delete(key, present.version)

    def _lay_still(self, key: str, version: str) -> bool:
        """Whether the file was unchanged between two reads far enough apart."""
        now = self.core.clock.boottime()
        known, since = self._seen.get(key, ("", now))
        if known != version:
            self._seen[key] = (version, now)
            return False
        return now - since >= self.core.settings.inbox_patience


def _is_json_object(data: bytes) -> bool:
    try:
        return isinstance(parse_json(data), dict)
    except Malformed:
        return False
