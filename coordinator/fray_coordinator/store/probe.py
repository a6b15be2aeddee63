"""Tests whether a live root can carry a cluster by making the same requests as Fray, and reports problems plainly.

It tests the backend itself: the layer above would retry and read back, and so hide broken promises.
"""

import asyncio
import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from fray_coordinator.clock import Clock, SystemClock, system_random
from fray_coordinator.store.buckets import BucketSettings, Inspectable
from fray_coordinator.store.file_tree import FULL_REMEDY, is_shared, lack_of_room
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    NOT_MODIFIED,
    AttemptFailed,
    BadObject,
    Expectation,
    PreconditionFailed,
    Refused,
    StoreBackend,
)
from fray_coordinator.store.local import LocalBackend
from fray_coordinator.store.opening import network_file_system, open_backend
from fray_layouts.errors import FrayError
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, DoctorKeys, EndpointKey, JobKeys, NameKeys
from fray_layouts.queue_keys import QueueKeys

CLOCK_TOLERANCE = 30.0
"""Seconds that this host's clock may be wrong without a warning; from minutes on, providers refuse credentials."""
LONG_LOCK_SECONDS = 1.0
"""Seconds between two reads of the locks; a lock that is held at both reads counts as held for long."""
TRIES, TRY_PAUSE = 3, 0.5
"""How often a joining agent makes a check to which some request gets no answer, and the seconds between two tries."""
AREAS = (AgentKeys.area, JobKeys.area, PendingKey.area, NameKeys.area, EndpointKey.area, QueueKeys.area)
"""Where a cluster has most of its objects: a proxy, a cache or a policy may treat some of them in another way."""
SAMPLE = 5
"""Objects of each area that are read."""
TIME_TOLERANCE = 2.0
"""Seconds by which two answers about one object's time may differ: some have whole seconds."""
MAX_UNREADABLE_NAMED = 20
"""Number of unreadable objects that are reported by name."""
SHARE_REMEDY = "to share a root with a group, give it to the group: docs/operating.md says how"
UNUSABLE_REMEDY = "do not use this root: two agents would run the same job; use GCS, S3 or a local disk"
UNSAFE_DELETES_REMEDY = (
    "this is good enough to try things out, but not for work: an object that one process changes while another deletes "
    "it is lost. Two consumers may get the same item of a queue, an actor may not be found, or a job may wait until "
    "the next repair; for work, use GCS, S3 or a local disk"
)
TIMES_REMEDY = (
    "do not use this root: items of queues would count as void, and jobs would be kept too long or not long enough; "
    "correct the clocks of its servers, or use GCS, S3 or a local disk"
)
UNORDERED_REMEDY = (
    "do not use this root: jobs and items of queues would be found late, or never; use GCS, S3 or a local disk"
)
UNORDERED_FOLDERS_REMEDY = (
    "jobs, actors and queues do not depend on that. A spec that is dropped as inbox/rejected... waits while a thousand "
    "rejections lie beside it, and `fray fsck` may overlook strangers' files at the top of the root"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        severity: `error` means that a cluster must not or cannot use this root.
        remedy: what to do about it; empty when nothing is wrong.
    """

    severity: Literal["ok", "warning", "error"]
    what: str
    remedy: str = ""


Check = Callable[[StoreBackend, str, Clock], Awaitable[list[Finding]]]


async def probe(root: str) -> list[Finding]:
    """Probe `root`: write, list and delete a few objects under `doctor/`, and read some of a cluster's own.

    In a bucket, the storage's promises are tried in several folders at once, also among the cluster's objects.
    """
    clock = SystemClock()
    try:
        backend = open_backend(root, clock)
    except FrayError as error:
        return [Finding("error", f"{root} cannot be opened", str(error))]
    folder = DoctorKeys.folder(system_random().token())
    folders = [folder] if backend.local else [folder, *(f"{area}{folder}" for area in AREAS)]
    try:
        findings: list[Finding] = []
        for check in PROMISES:
            made = await asyncio.gather(*(_findings(check, backend, one, clock) for one in folders))
            findings += _together(dict(zip(folders, made, strict=True)))
        for check in (*CHECKS, _clean_up):
            findings += await _findings(check, backend, folder, clock)
        for one in folders[1:]:
            findings += await _findings(_clean_up, backend, one, clock)
        return list(dict.fromkeys(findings))
    finally:
        await backend.close()


def _together(made: Mapping[str, list[Finding]]) -> list[Finding]:
    """The findings of one check by the folder where it was made; what is wrong only in some of them names these."""
    where: dict[Finding, list[str]] = {}
    for folder, findings in made.items():
        for finding in findings:
            where.setdefault(finding, []).append(folder.partition("/")[0] + "/")
    wrong = {finding: folders for finding, folders in where.items() if finding.severity != "ok"}
    return [
        finding if len(folders) == len(made) else replace(finding, what=f"{finding.what} (under {', '.join(folders)})")
        for finding, folders in (wrong or where).items()
    ]


async def why_unfit(root: str) -> str:
    """Why `root` cannot carry a cluster, and the remedy; "" if it can, or if nobody can tell."""
    if not (found := await unfitness(root)):
        return ""
    why = ". Also: ".join(f"{finding.what}; {finding.remedy}" for finding in found)
    return f"{root} can carry no cluster, as `fray doctor` says: {why}"


async def unfitness(root: str) -> list[Finding]:
    """The errors of `probe` about the root's promises, rights and settings; none while the storage is unreachable."""
    clock = SystemClock()
    backend = open_backend(root, clock)
    folder = DoctorKeys.folder(system_random().token())
    found: list[Finding] = []
    try:
        for check in (_create, _change, _delete, _read, _order, _settings, _permissions):
            found += await _answered(check, backend, folder, clock)
    except Refused as error:
        found += [] if error.may_pass else [_failure(folder, error)]
    except AttemptFailed:
        pass  # what was found before counts; for the rest, a process that joins waits until the storage answers
    finally:
        with suppress(AttemptFailed):
            await _clean_up(backend, folder, clock)
        await backend.close()
    return [finding for finding in found if finding.severity == "error"]


async def _answered(check: Check, backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """The findings of a check, which is made again under other names if some request of it gets no answer."""
    for number in range(TRIES - 1):
        try:
            return await check(backend, f"{folder}/{number}", clock)
        except PreconditionFailed as error:
            return [_failure(folder, error)]
        except Refused:
            raise
        except AttemptFailed:
            await clock.sleep(TRY_PAUSE)
    return await check(backend, f"{folder}/{TRIES - 1}", clock)


async def _findings(check: Check, backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    try:
        return await check(backend, folder, clock)
    except AttemptFailed as error:
        return [_failure(folder, error)]


def _failure(folder: str, error: AttemptFailed) -> Finding:
    """The finding about a check that failed; checks that fail for one cause give the same words."""
    if isinstance(error, PreconditionFailed):
        return Finding("error", "a write on the version that the storage had just given was rejected", UNUSABLE_REMEDY)
    what = re.sub(rf"^{folder}/\S+: ", "", str(error))
    return Finding("error", what, "put this right, or give another root")


async def _create(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Create an object on condition that it is absent."""
    await backend.put(f"{folder}/create", b"first", ABSENT)
    if await _put_works(backend, f"{folder}/create", b"second", ABSENT):
        return [
            Finding("error", "an object that exists was created again: the store ignores conditions", UNUSABLE_REMEDY)
        ]
    return [Finding("ok", "an object is created only where there is none")]


async def _change(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Change an object on condition of its version."""
    old = (await backend.put(f"{folder}/change", b"first", ANY)).version
    await backend.put(f"{folder}/change", b"second", old)
    if await _put_works(backend, f"{folder}/change", b"third", old):
        return [Finding("error", "an object was changed although its version was another", UNUSABLE_REMEDY)]
    return [Finding("ok", "an object is changed only if it has the version that was read")]


async def _delete(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Delete an object on condition of its version."""
    key = f"{folder}/delete"
    old = (await backend.put(key, b"first", ANY)).version
    new = (await backend.put(key, b"second", ANY)).version
    try:
        await backend.delete(key, old)
    except PreconditionFailed:
        await backend.delete(key, new)
    else:
        return [Finding("error", "an object was deleted although its version was another", UNSAFE_DELETES_REMEDY)]
    if await backend.get(key) is not None:
        return [Finding("error", "an object is still there after it was deleted", UNUSABLE_REMEDY)]
    return [Finding("ok", "an object is deleted only if it has the version that was read")]


async def _poll(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Read an object on condition that its version has changed."""
    version = (await backend.put(f"{folder}/poll", b"first", ANY)).version
    if await backend.get_if_changed(f"{folder}/poll", version) is NOT_MODIFIED:
        return [Finding("ok", "an unchanged object is not sent again")]
    return [Finding("warning", "an unchanged object is sent again with every poll", "expect more traffic")]


async def _read(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Read an object that was just written: its content, its version and its time, also in a listing."""
    key = f"{folder}/read"
    version = (await backend.put(key, b"content", ANY)).version
    found = await backend.get(key)
    rows = await backend.list(key, None, None, True)
    if found is None or found.data != b"content" or found.version != version:
        return [
            Finding(
                "error",
                "an object that was just written is read with other content or another version",
                UNUSABLE_REMEDY,
            )
        ]
    if [row.version for row in rows] != [version]:
        return [
            Finding("error", "an object that was just written is listed with another version, or not", UNUSABLE_REMEDY)
        ]
    times = [found.updated, *(row.updated for row in rows if row.updated is not None)]
    now = clock.wall() + (backend.server_offset() or 0.0)
    if (wrong := max(abs(now - time) for time in times)) > CLOCK_TOLERANCE:
        what = f"the time of an object that was just written differs by {wrong:.0f} s from the storage's clock"
        return [Finding("error", what, TIMES_REMEDY)]
    return [Finding("ok", "an object is read as it was written, with its version and its time")]


async def _order(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """List objects in order, in one folder and across folders; jobs and queues only rely on the former."""
    flat = [f"{folder}/flat/{name}" for name in ("a-b", "a.b", "a0")]
    nested = [f"{folder}/nested/{name}" for name in ("a-b", "a/b")]
    for key in (*reversed(flat), *nested):
        await backend.put(key, b"", ANY)
    listed = [row.key for row in await backend.list(f"{folder}/flat/", None, None, False)]
    behind = [row.key for row in await backend.list(f"{folder}/flat/", flat[0], 1, False)]
    across = [row.key for row in await backend.list(f"{folder}/nested/", None, None, False)]
    if {*listed, *across} != {*flat, *nested}:
        return [Finding("error", "a listing lacks objects that were just written", UNUSABLE_REMEDY)]
    if listed != flat or behind != flat[1:2]:
        return [Finding("error", "listings are not in the order of the names' bytes", UNORDERED_REMEDY)]
    if across != nested:
        what = "folders are listed by their own names, not in the order of the bytes of whole names (as SeaweedFS does)"
        return [Finding("warning", what, UNORDERED_FOLDERS_REMEDY)]
    return [Finding("ok", "listings are complete and in order")]


async def _clock(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Compare this host's clock with the store's."""
    await backend.get(f"{folder}/clock")
    offset = backend.server_offset()
    if offset is None:
        return [Finding("error", "the store's answers have no Date, so its clock is unknown", UNUSABLE_REMEDY)]
    if abs(offset) > CLOCK_TOLERANCE:
        way = "behind" if offset > 0 else "ahead of"
        what = f"this host's clock is {abs(offset):.0f} s {way} the store's"
        return [Finding("warning", what, "set the clock (NTP): credentials may be refused, and times in logs mislead")]
    return [Finding("ok", f"this host's clock and the store's differ by {abs(offset):.1f} s")]


async def _samples(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Read some objects that the cluster has: whether listings and reads agree about their versions and times."""
    found = []
    for area in AREAS:
        contents: dict[str, set[bytes]] = {}
        for row in await backend.list(area, None, SAMPLE, True):
            for _ in range(2):
                with suppress(BadObject):  # another check, or `fray fsck`, names it
                    if (read := await backend.get(row.key)) is not None and read.version == row.version:
                        contents.setdefault(read.version, set()).add(read.data)
                        if row.updated is not None and abs(read.updated - row.updated) > TIME_TOLERANCE:
                            what = f"two answers about an object under {area} give different times for one version"
                            found.append(Finding("error", what, TIMES_REMEDY))
        if any(len(different) > 1 for different in contents.values()):
            what = f"objects under {area} have the same version although their contents differ"
            found.append(Finding("error", what, UNUSABLE_REMEDY))
    return found


async def _settings(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    return judge_settings(await backend.settings()) if isinstance(backend, Inspectable) else []


def judge_settings(settings: BucketSettings) -> list[Finding]:
    """The findings about a bucket's settings."""
    found = []
    if settings.soft_delete_days:
        days = f"{settings.soft_delete_days:g} days"
        what = f"soft delete keeps every overwritten and deleted object for {days}, at a price"
        remedy = "switch it off: gcloud storage buckets update gs://BUCKET --clear-soft-delete"
        found.append(Finding("warning", what, remedy))
    if settings.versioning:
        what = "object versioning keeps every overwritten heartbeat and record, at a price"
        found.append(Finding("warning", what, "switch it off or suspend it for this bucket"))
    if settings.lifecycle_rules:
        what = (
            f"the bucket has {settings.lifecycle_rules} lifecycle rules, which may delete or move a cluster's objects"
        )
        remedy = "make sure that none applies to this root; Fray itself removes old objects"
        found.append(Finding("warning", what, remedy))
    for retention in settings.retention:
        what = f"the bucket has {retention}: objects cannot be overwritten or deleted"
        found.append(Finding("error", what, "use a bucket without retention and holds"))
    if settings.unreadable:
        what = f"these credentials may not read the bucket's settings: {', '.join(settings.unreadable)}"
        remedy = "ask somebody with that right to check retention, versioning, lifecycle and soft delete"
        found.append(Finding("warning", what, remedy))
    return found or [Finding("ok", "no soft delete, versioning, lifecycle rules or retention on the bucket")]


async def _file_system(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Check the file system, and that no lock is held for long."""
    if not isinstance(backend, LocalBackend):
        return []
    lack = lack_of_room(backend.folder)
    found = [Finding("error", lack, FULL_REMEDY)] if lack else []
    kind = network_file_system(backend.folder)
    if kind:
        remedy = "make sure that only this machine uses the folder, or use a bucket"
        what = f"{backend.folder} is on a {kind} file system, whose locks do not hold between machines"
        found.append(Finding("warning", what, remedy))
    before = set(backend.holders())
    if before:
        await clock.sleep(LONG_LOCK_SECONDS)
    for holder in sorted(before & set(backend.holders())):
        what = (
            f"lock {holder.stripe} could not be taken for more than {LONG_LOCK_SECONDS:g} s; it is held by {holder.who}"
        )
        found.append(Finding("warning", what, "if that process is stopped or stuck, continue it or end it"))
    return found


async def _permissions(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Check owner and mode of the folder; if there is none, another check reports it."""
    if not isinstance(backend, LocalBackend) or not backend.folder.exists():
        return []
    return judge_permissions(os.stat(backend.folder))


def judge_permissions(root: os.stat_result) -> list[Finding]:
    """The findings about owner and mode of a local root."""
    found = []
    if root.st_mode & stat.S_IWOTH:
        what = "every user of this host may write into the root, and so run code as its agents' user"
        found.append(Finding("error", what, f"chmod o-rwx ROOT; {SHARE_REMEDY}"))
    elif root.st_mode & stat.S_IRWXO:
        what = "every user of this host may look into the root; agents make nothing there that others can read"
        found.append(Finding("warning", what, f"chmod o-rwx ROOT; {SHARE_REMEDY}"))
    if root.st_mode & stat.S_IRWXG and not is_shared(root.st_mode):
        what = f"group {root.st_gid} may enter the root, but what agents make there is their own user's alone"
        found.append(Finding("warning", what, f"chmod g-rwx ROOT; {SHARE_REMEDY}"))
    whose = f"the group {root.st_gid}" if is_shared(root.st_mode) else f"the user {root.st_uid} alone"
    return found or [Finding("ok", f"what is made below the root is for {whose}")]


async def _unreadable_files(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    """Find files that cannot be read as objects."""
    if not isinstance(backend, LocalBackend):
        return []
    found = await asyncio.to_thread(lambda: list(islice(backend.unreadable_files_below(), MAX_UNREADABLE_NAMED)))
    remedy = "look at it, then remove it; nothing else is harmed"
    return [Finding("warning", f"{name} cannot be read as an object: {why}", remedy) for name, why in found]


async def _clean_up(backend: StoreBackend, folder: str, clock: Clock) -> list[Finding]:
    for row in await backend.list(f"{folder}/", None, None, False):
        await backend.delete(row.key, ANY)
    return []


PROMISES: tuple[Check, ...] = (_create, _change, _delete, _poll, _read, _order)
CHECKS: tuple[Check, ...] = (_samples, _clock, _settings, _file_system, _permissions, _unreadable_files)


async def _put_works(backend: StoreBackend, key: str, data: bytes, expect: Expectation) -> bool:
    try:
        await backend.put(key, data, expect)
    except PreconditionFailed:
        return False
    return True
