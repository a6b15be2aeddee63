"""Downloads outputs of jobs from the storage into a folder.

The manifest comes from the storage and is not trusted: a file is written only inside of the folder, even if the folder
contains links. A file appears under its name once it is complete.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fray.errors import NoOutputs
from fray_coordinator.clock import system_random
from fray_coordinator.core import Core
from fray_coordinator.protocol.transitions import Status
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.path_patterns import PathMatch
from fray_layouts.records import JobRecord, LeftOut, OutputFile, OutputManifest
from fray_layouts.units import first_names
from fray_layouts.work_keys import WorkKeys

PARTS_AHEAD = 4
"""Parts that are fetched while one is written. With 16 MiB each, they use the full bandwidth of most buckets."""

SMALL_FILE_BYTES = 64 * 1024
SMALL_FILES_AT_ONCE = 100
"""Files up to this size are written so many at a time: giving each to a thread takes longer than writing it."""


@dataclass(frozen=True, slots=True)
class PulledOutputs:
    """The result of a download: the local paths, the bytes in all, and the files that the job could not keep."""

    files: list[Path]
    size: int
    left_out: list[LeftOut]


@dataclass(frozen=True, slots=True)
class OutputSlice:
    """A file of the manifest, or a part of one, and the offsets of its bytes in the stream of all files."""

    file: OutputFile
    begin: int
    end: int


async def pull_outputs(
    core: Core,
    job: JobRecord,
    target: Path,
    path: str = "",
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> PulledOutputs:
    """Download the outputs of a job into a folder, and replace existing files there.

    Args:
        target: the folder; it is created if it is absent.
        path: one file or folder among the outputs, or a pattern as in `JobRequest.outputs`; "" fetches all.
        on_bytes: called with the bytes written so far, and the bytes in all.

    Raises:
        NoOutputs: the job has no outputs, or none at that path; they are missing or damaged; or they cannot be written.
    """
    manifest = await read_manifest(core, job)
    wanted = _wanted(manifest, path, job.id)
    total, done = sum(each.end - each.begin for each in wanted), 0
    on_bytes(0, total)
    try:
        await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
        folders, small = _Folders(target), list[tuple[OutputFile, bytes]]()
        async with aclosing(bytes_of(core, job, manifest, wanted)) as pieces:
            for each in wanted:
                left = each.end - each.begin
                if left <= SMALL_FILE_BYTES:
                    small.append((each.file, await _joined(pieces, left)))
                else:
                    async with _NewFile(folders, each.file) as file:
                        while left:
                            piece = await anext(pieces)
                            await asyncio.to_thread(file.write, piece)
                            left, done = left - len(piece), done + len(piece)
                            on_bytes(done, total)
                if len(small) == SMALL_FILES_AT_ONCE or each is wanted[-1]:
                    await asyncio.to_thread(_write_all, folders, small)
                    done += sum(len(data) for _, data in small)
                    small = []
                    on_bytes(done, total)
    except OSError as error:
        raise NoOutputs(f"the outputs of {job.id} cannot be written to {target}: {error}") from error
    return PulledOutputs([target / each.file.path for each in wanted], total, manifest.left_out)


async def read_manifest(core: Core, job: JobRecord) -> OutputManifest:
    """The list of a job's output files. Raises NoOutputs: there is none, or it is damaged."""
    kept = job.outputs
    if job.status != Status.SUCCEEDED:
        raise NoOutputs(f"job {job.id} is {job.status}: only a job that has succeeded has outputs")
    if kept is None:
        remedy = "name them at its launch: JobRequest(outputs=[...]), fray run --output, or outputs in a job's file"
        raise NoOutputs(f"job {job.id} keeps no outputs; {remedy}")
    stored = await core.store.get(kept.key)
    if stored is None:
        raise NoOutputs(f"the outputs of job {job.id} are gone: there is no object {kept.key}")
    try:
        return codec.decode(stored.data, OutputManifest).record
    except Malformed as error:
        raise NoOutputs(f"{kept.key} lists no outputs that can be fetched: {error}") from None


def slices_of(manifest: OutputManifest) -> list[OutputSlice]:
    """All files of the manifest, whole."""
    slices, begin = list[OutputSlice](), 0
    for file in manifest.files:
        slices.append(OutputSlice(file, begin, begin + file.size))
        begin += file.size
    return slices


def _wanted(manifest: OutputManifest, path: str, job_id: str) -> list[OutputSlice]:
    slices = slices_of(manifest)
    if not path:
        return slices
    plain = path.rstrip("/")
    match = PathMatch.of([path])
    wanted = [each for each in slices if f"{each.file.path}/".startswith(f"{plain}/") or match.has(each.file.path)]
    if not wanted:
        there = first_names([file.path for file in manifest.files], 5) or "nothing"
        raise NoOutputs(f"job {job_id} has no output {path}; there is {there}")
    return wanted


async def bytes_of(
    core: Core, job: JobRecord, manifest: OutputManifest, wanted: Sequence[OutputSlice]
) -> AsyncGenerator[bytes, None]:
    """The bytes of the wanted slices, in order. Each piece belongs to one of them."""
    assert job.outputs is not None
    length, number, data = manifest.part_bytes, -1, b""
    async with aclosing(_parts(core, job.outputs.key, _numbers(wanted, length))) as parts:
        for each in wanted:
            begin = each.begin
            while begin < each.end:
                if begin // length != number:
                    number, data = await anext(parts)
                end = min(each.end, (number + 1) * length)
                piece = data[begin - number * length : end - number * length]
                if len(piece) != end - begin:
                    raise NoOutputs(f"the outputs of job {job.id} are damaged: part {number + 1} is too short")
                yield piece
                begin = end


def _numbers(wanted: Sequence[OutputSlice], length: int) -> Iterator[int]:
    """The numbers, from 0, of the parts that the wanted files need, in order."""
    following = 0
    for each in wanted:
        if each.end > each.begin:
            last = (each.end - 1) // length
            yield from range(max(following, each.begin // length), last + 1)
            following = last + 1


async def _parts(core: Core, key: str, numbers: Iterator[int]) -> AsyncGenerator[tuple[int, bytes], None]:
    """The parts of these numbers, in order; the next `PARTS_AHEAD` are fetched at the same time."""

    async def fetch(number: int) -> tuple[int, bytes]:
        name = WorkKeys.output_part(key, number + 1)
        stored = await core.store.get(name)
        if stored is None:
            raise NoOutputs(f"a part of the outputs is gone: there is no object {name}")
        return number, stored.data

    ahead: deque[asyncio.Task[tuple[int, bytes]]] = deque()
    try:
        for number in numbers:
            ahead.append(asyncio.create_task(fetch(number)))
            if len(ahead) > PARTS_AHEAD:
                yield await ahead.popleft()
        while ahead:
            yield await ahead.popleft()
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def _joined(pieces: AsyncGenerator[bytes, None], size: int) -> bytes:
    """The next `size` bytes."""
    data = b""
    while len(data) < size:
        data += await anext(pieces)
    return data


class _Folders:
    """The folders of the files, each checked and made once, however many files are in it."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._made: set[str] = set()

    def make(self, path: str) -> Path:
        """Make the folder that a file is in. Raises `OSError` if one on the way is a link."""
        below, place = path.rpartition("/")[0], self.target
        if below in self._made:
            return place / below
        for name in below.split("/") if below else ():
            place /= name
            if place.is_symlink():
                raise OSError(f"{place} is a link, which may lead anywhere; remove it or choose another folder")
            place.mkdir(exist_ok=True)
        self._made.add(below)
        return place


class _NewFile:
    """A new file that replaces the one under its name when it is complete; until then that one is unchanged."""

    def __init__(self, folders: _Folders, file: OutputFile) -> None:
        self._folders = folders
        self._file = file
        self._temporary = Path()
        self._open: BinaryIO | None = None

    async def __aenter__(self) -> BinaryIO:
        self._open = await asyncio.to_thread(self.create)
        return self._open

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._open is not None
        await asyncio.to_thread(self.finish if kind is None else self.drop, self._open)

    def create(self) -> BinaryIO:
        folder = self._folders.make(self._file.path)
        self._temporary = folder / f".fray-{system_random().token()}"
        mode = 0o777 if self._file.executable else 0o666
        return open(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb")

    def finish(self, file: BinaryIO) -> None:
        try:
            file.close()
            os.replace(self._temporary, self._folders.target / self._file.path)
        except OSError:
            self.drop(file)
            raise

    def drop(self, file: BinaryIO) -> None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            self._temporary.unlink()


def _write_all(folders: _Folders, files: Sequence[tuple[OutputFile, bytes]]) -> None:
    for file, data in files:
        new = _NewFile(folders, file)
        opened = new.create()
        try:
            opened.write(data)
        except BaseException:
            new.drop(opened)
            raise
        new.finish(opened)
