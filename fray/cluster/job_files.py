"""The files of jobs as a tree that can only be read: `JOB/logs`, and each output of a job under its own path.

`fray ls`, `fray cat` and `fray cp` call this with a path, and so does `fray.filesystem` for programs. Each call finds
the job by its id or name and reads the list of its outputs: two requests, and one more for each part that it reads. An
output named `logs`, a file or a folder, takes the place of the log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fray.cluster.pulling import OutputSlice, bytes_of, read_manifest, slices_of
from fray.errors import NoOutputs
from fray_coordinator.core import Core
from fray_coordinator.jobs.logs import read_logs
from fray_coordinator.jobs.lookup import find_job, job_ids
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import JobRecord, OutputManifest
from fray_layouts.units import first_names

LOGS = "logs"
"""The name of a job's log among its files."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder.

    Attributes:
        path: as it was asked for, from the job on.
        size: bytes; None for a log, whose size is known once it is read, and 0 for a folder.
    """

    path: str
    size: int | None = 0
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file that is found: an output if it has a place among the job's outputs, else the log."""

    job: JobRecord
    manifest: OutputManifest
    place: OutputSlice | None

    @property
    def size(self) -> int | None:
        """Bytes of an output; None for a log."""
        return None if self.place is None else self.place.end - self.place.begin


async def list_entries(core: Core, path: str) -> list[Entry]:
    """What is in a folder, sorted by name; of a file the file itself. "" lists the jobs.

    Raises:
        JobNotFound: there is no such job.
        NoOutputs: the job has no such file or folder, or its list of outputs is damaged.
        InvalidInput: several jobs match.
    """
    text, below = _parts_of(path)
    if not text:
        return [Entry(job, is_folder=True) for job in sorted(await job_ids(core))]
    job, manifest = await _read(core, text)
    found = {} if below else {LOGS: Entry(f"{text}/{LOGS}", None)}
    for each in slices_of(manifest):
        if each.file.path == below:
            return [Entry(f"{text}/{below}", each.file.size)]
        inside = each.file.path.removeprefix(f"{below}/" if below else "")
        if below and inside == each.file.path:
            continue
        name, is_deeper, _ = inside.partition("/")
        place = "/".join(part for part in (text, below, name) if part)
        found[name] = Entry(place, is_folder=True) if is_deeper else Entry(place, each.file.size)
    if not found and below == LOGS:
        return [Entry(f"{text}/{LOGS}", None)]
    if not found:
        raise _absent(job, manifest, below)
    return [found[name] for name in sorted(found)]


async def find_file(core: Core, path: str) -> JobFile:
    """The file at a path, for `file_pieces`. Raises as `list_entries`, and NoOutputs if it is a folder."""
    text, below = _parts_of(path)
    if not below:
        raise NoOutputs(f"{path or '/'} is a folder; name a file in it, as `fray ls` shows them")
    job, manifest = await _read(core, text)
    files = {each.file.path: each for each in slices_of(manifest)}
    if below not in files and any(name.startswith(f"{below}/") for name in files):
        raise NoOutputs(f"{path} is a folder; name a file in it, as `fray ls {path}` shows them")
    if below not in files and below != LOGS:
        raise _absent(job, manifest, below)
    return JobFile(job, manifest, files.get(below))


async def file_pieces(core: Core, file: JobFile, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
    """The bytes of a file from `start` to before `end`, by default to its end. Several parts are fetched at once.

    Raises NoOutputs: a part is gone or damaged.
    """
    if file.place is None:
        log = b"".join(line.data + b"\n" * line.complete for line in await read_logs(core, file.job))
        yield log[start:end]
        return
    size = file.place.end - file.place.begin
    last = size if end is None else min(end, size)
    if start >= last:
        return
    wanted = OutputSlice(file.place.file, file.place.begin + start, file.place.begin + last)
    async with aclosing(bytes_of(core, file.job, file.manifest, [wanted])) as pieces:
        async for piece in pieces:
            yield piece


async def _read(core: Core, text: str) -> tuple[JobRecord, OutputManifest]:
    """The job and the list of its outputs, which is empty if it has kept none, or none yet."""
    job = (await find_job(core, text)).record
    has_outputs = job.status == Status.SUCCEEDED and job.outputs is not None
    return job, await read_manifest(core, job) if has_outputs else OutputManifest()


def _absent(job: JobRecord, manifest: OutputManifest, below: str) -> NoOutputs:
    if job.status != Status.SUCCEEDED:
        return NoOutputs(f"job {job.id} has no file {below}: it is {job.status}, and it has outputs once it succeeds")
    there = first_names([LOGS, *(file.path for file in manifest.files)], 5)
    return NoOutputs(f"job {job.id} has no file {below}; there is {there}")


def _parts_of(path: str) -> tuple[str, str]:
    """The id or name of the job, and the path within it."""
    text, _, below = path.strip("/").partition("/")
    return text, below
