"""`fray://`: the files of jobs, for every program that reads by fsspec, such as pandas. They can only be read.

    pandas.read_parquet("fray://JOB/out/part-0.parquet")
    fsspec.open("fray://JOB/logs")

JOB is a job's id, the beginning of one, or its name. The cluster is the one that FRAY_CLUSTER_SPEC names, or
`storage_options={"root": ...}`. fsspec finds this module by an entry point of the package. `fray.cluster.job_files`
says what the files are, and what a call costs.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from fray.cluster.current import open_cluster, storage_cluster
from fray.cluster.job_files import Entry, JobFile, file_pieces, find_file, list_entries
from fray.errors import NoOutputs
from fray_coordinator.core import Core
from fray_coordinator.errors import JobNotFound

T = TypeVar("T")


class FrayFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of a cluster's jobs.

    Args:
        root: of the cluster, as for `open_cluster`; None takes the current cluster, each time.
        storage_options: fsspec's own, such as `skip_instance_cache`.

    Raises:
        FileNotFoundError: by all methods that read: there is no such job or file, or the job has not succeeded.
        OSError: by all methods that write.
        InvalidInput: several jobs match, or the cluster is not in storage.
    """

    protocol = "fray"
    root_marker = ""

    def __init__(self, root: str | None = None, **storage_options: Any) -> None:
        super().__init__(root=root, **storage_options)
        self._root = root

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a folder, or a file itself; "" lists the jobs. With `detail` as dicts like those of `info`."""
        inside = self._strip_protocol(path)
        entries = self._run(path, lambda core: list_entries(core, inside))
        return [_details(entry) if detail else entry.path for entry in entries]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The name, size in bytes and type of a file or folder. The size of a log is None until it is read."""
        inside = self._strip_protocol(path)
        entries = self.ls(inside) if inside else []
        is_file = [entry["name"] for entry in entries] == [inside] and entries[0]["type"] == "file"
        return entries[0] if is_file else _details(Entry(inside, is_folder=True))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file from `start` to before `end`; negative numbers count from its end."""
        inside = self._strip_protocol(path)
        file = self._run(path, lambda core: find_file(core, inside))
        if file.size is None:
            return self._read(path, file)[start:end]
        first, last, _step = slice(start, end).indices(file.size)
        return self._read(path, file, first, last)

    def get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        """Copy a file to a local path, or into an open file; of a folder, make the local one."""
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        inside = self._strip_protocol(rpath)
        file = self._run(rpath, lambda core: find_file(core, inside))
        callback.set_size(file.size)
        if hasattr(lpath, "write"):
            self._copy(rpath, file, lpath, callback)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") as target:
            self._copy(rpath, file, target, callback)

    def _copy(self, path: str, file: JobFile, target: Any, callback: Any) -> None:
        async def copy(core: Core) -> None:
            async with aclosing(file_pieces(core, file)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(target.write, piece)
                    callback.relative_update(len(piece))

        self._run(path, copy)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            _refuse_writing(path)
        file = self._run(path, lambda core: find_file(core, path))
        if file.size is None:
            return io.BytesIO(self._read(path, file))
        options["block_size"] = file.manifest.part_bytes  # less would fetch a part more than once
        return _OpenFile(self, path, file, **options)

    def _read(self, path: str, file: JobFile, start: int = 0, end: int | None = None) -> bytes:
        async def read(core: Core) -> bytes:
            async with aclosing(file_pieces(core, file, start, end)) as pieces:
                return b"".join([piece async for piece in pieces])

        return self._run(path, read)

    def _run(self, path: str, work: Callable[[Core], Awaitable[T]]) -> T:
        cluster = storage_cluster(None if self._root is None else open_cluster(self._root))
        try:
            return cluster.run(work)
        except (JobNotFound, NoOutputs) as error:
            raise FileNotFoundError(errno.ENOENT, str(error), self.unstrip_protocol(path)) from error

    def _refuse(self, path: Any, *_: Any, **__: Any) -> NoReturn:
        _refuse_writing(path)

    mkdir = makedirs = rmdir = rm = rm_file = _rm = mv = cp_file = touch = pipe_file = put_file = _refuse


class _OpenFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An output that is open for reading; fsspec keeps the block that it is in."""

    def __init__(self, fs: FrayFileSystem, path: str, file: JobFile, **options: Any) -> None:
        self._file = file
        super().__init__(fs, path, size=file.size, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs._read(self.path, self._file, start, end)  # type: ignore[no-any-return]


def _details(entry: Entry) -> dict[str, Any]:
    return {"name": entry.path, "size": entry.size, "type": "directory" if entry.is_folder else "file"}


def _refuse_writing(path: object) -> NoReturn:
    remedy = "fray:// can only be read: a job keeps files by its `outputs`"
    raise OSError(errno.EROFS, remedy, str(path))
