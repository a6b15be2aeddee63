"""Finds the files that match a job's `outputs` after its task has ended, and reads them as parts of one stream.

The task may have left anything there. Links are followed only to files inside the folder, never into folders. Whatever
is not a regular file, or cannot be read, is left out with the reason.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fray_agents.runner.untrusted_files import NotReadable, file_size
from fray_layouts.path_patterns import PathMatch
from fray_layouts.records import MAX_OUTPUT_BYTES, MAX_OUTPUT_FILES, LeftOut, OutputFile, OutputManifest
from fray_layouts.units import format_bytes
from fray_runtime.directories import is_shortage

MAX_LEFT_OUT = 100
"""Most omissions that are listed: they are for people, to whom the first ones show what is wrong."""


class OutputsTooLarge(Exception):
    """More files, or more bytes, than a job's outputs may have."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to keep: its path for the manifest, and a function that opens it."""

    path: str
    open: Callable[[], BinaryIO]
    executable: bool = False


@dataclass(slots=True)
class FoundOutputs:
    """The files that a task has left and that its job's patterns name."""

    files: list[FoundFile] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, path: str, why: object) -> None:
        """Record that something at `path` is not kept, with the reason."""
        if len(self.left_out) < MAX_LEFT_OUT:
            shown = path.encode(errors="backslashreplace").decode()
            self.left_out.append(LeftOut(path=shown, why=str(why).encode(errors="backslashreplace").decode()))

    def parts(self, manifest: OutputManifest) -> Iterator[bytes]:
        """The bytes of all files, one after the other, in parts; adds each file to the manifest once it is read.

        Raises:
            OutputsTooLarge: the files have grown beyond what is kept.
            OSError: the host cannot read a file.
        """
        part, total, part_bytes = bytearray(), 0, manifest.part_bytes
        for found in self.files:
            try:
                file = found.open()
            except OSError as error:
                self.leave_out(found.path, _lasting_reason(error))
                continue
            with file:
                begin = total
                while data := file.read(part_bytes - len(part)):
                    part += data
                    total = _checked_size(total + len(data))
                    if len(part) == part_bytes:
                        yield bytes(part)
                        part.clear()
            manifest.files.append(OutputFile(path=found.path, size=total - begin, executable=found.executable))
        if part:
            yield bytes(part)


def find_outputs(folder: Path, patterns: Sequence[str]) -> FoundOutputs:
    """The files below `folder` that the patterns name, in the order of their paths.

    Raises:
        OutputsTooLarge: there are more than are kept.
        OSError: the host cannot read them.
    """
    found, root, total = FoundOutputs(), os.path.realpath(folder), 0
    folders = [("", PathMatch.of(patterns))]
    while folders:
        above, match = folders.pop()
        try:
            with os.scandir(os.path.join(root, above)) as entries:
                inside = [(entry, match.entered(entry.name)) for entry in entries]
        except OSError as error:
            found.leave_out(above or ".", _lasting_reason(error))
            continue
        for entry, inner in inside:
            path = os.path.join(above, entry.name)
            if entry.is_dir(follow_symlinks=False):
                folders += [(path, inner)] if inner.is_possible() else []
            elif inner.is_met():
                total = _checked_size(total + _keep(found, root, path))
    found.files.sort(key=lambda file: file.path)
    return found


def _keep(found: FoundOutputs, root: str, path: str) -> int:
    """Add the file at `path`, or leave it out; its size in bytes."""
    real = os.path.realpath(os.path.join(root, path))
    try:
        path.encode()
        if not real.startswith(f"{root.rstrip('/')}/"):
            raise NotReadable("it is a link that leads out of the working directory")
        size = file_size(real)
    except UnicodeEncodeError:
        found.leave_out(path, "its name is not UTF-8")
        return 0
    except OSError as error:
        found.leave_out(path, _lasting_reason(error))
        return 0
    if len(found.files) == MAX_OUTPUT_FILES:
        raise OutputsTooLarge(
            f"more than {MAX_OUTPUT_FILES:,} files are named by the job's outputs; name fewer, or pack them into one"
        )
    found.files.append(FoundFile(path, partial(_open_regular_file, real), os.access(real, os.X_OK)))
    return size


def _checked_size(total: int) -> int:
    if total > MAX_OUTPUT_BYTES:
        raise OutputsTooLarge(
            f"the job's outputs have more than {format_bytes(MAX_OUTPUT_BYTES)}; "
            "name fewer files, or have the job write them to a bucket"
        )
    return total


def _open_regular_file(path: str) -> BinaryIO:
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def _lasting_reason(error: OSError) -> str:
    """The reason, if no other host could read the file either. Raises the error if the cause is this host."""
    if error.errno == errno.EIO or is_shortage(error):
        raise error
    return error.strerror or str(error)
