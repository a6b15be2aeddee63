"""The records of a job's outputs: the summary in the job's record, and the manifest that lists the files."""

from itertools import accumulate

import msgspec

from fray_layouts.bounds import Count, Key
from fray_layouts.errors import InvalidInput
from fray_layouts.records.base import CheckedStruct

OUTPUT_PART_BYTES = 16 * 1024**2
"""Bytes of one part of a job's outputs. A few parts are in memory at a time, and a bucket stores one within a
second."""
MAX_OUTPUT_FILES = 10_000
"""Largest number of output files of a job; a manifest of this size is read or written in a second."""
MAX_OUTPUT_BYTES = 100 * 1024**3
"""Bytes of a job's outputs, which take a quarter of an hour to a bucket. A job should itself write what is larger."""
_MAX_PARTS = 100_000
"""Parts of a job's outputs: ten times as many as `MAX_OUTPUT_BYTES` need, since another version may keep more."""


class KeptOutputs(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The outputs of a job that succeeded: `files` files of `size` bytes in total, listed in the object `key`.

    Attributes:
        parts: number of objects that hold the bytes: `<key>-<number>`, from 1.
    """

    key: Key
    parts: Count = 0
    files: Count = 0
    size: Count = 0

    def check(self, field: str) -> None:
        """Raise InvalidInput, which names a part of `field`, if so many bytes cannot be in so many parts."""
        if self.parts > min(self.size, _MAX_PARTS):
            remedy = f"{self.size} bytes are in at most {min(self.size, _MAX_PARTS)} parts"
            raise InvalidInput(f"{field}.parts", self.parts, remedy)


class OutputFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file of a job's outputs: its path relative to the working directory, and its size in bytes."""

    path: str
    size: Count = 0
    executable: bool = False


class LeftOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file that matches a job's patterns but is not among its outputs: its path, and the reason."""

    path: str
    why: str


class OutputManifest(CheckedStruct, kw_only=True, omit_defaults=True):
    """`work/<job_id>/<attempt>/<replica>/outputs`: the files of an attempt, in the order of their bytes.

    Attributes:
        files: the bytes of all files, one after the other, are cut into parts.
        part_bytes: length of every part except the last.
        left_out: the first of the files that were not kept.
    """

    files: list[OutputFile] = msgspec.field(default_factory=list)
    part_bytes: Count = OUTPUT_PART_BYTES
    left_out: list[LeftOut] = msgspec.field(default_factory=list)

    def check(self) -> None:
        """Raise InvalidInput if a path leads out of the folder or through another file, or parts have no bytes."""
        paths = {file.path for file in self.files}
        if len(paths) < len(self.files):
            raise InvalidInput("files", f"{len(self.files)} files", f"they have {len(paths)} paths; list each once")
        for file in self.files:
            names = file.path.split("/")
            if "\0" in file.path or any(name in ("", ".", "..") for name in names):
                raise InvalidInput("files", file.path, "it leads out of the folder; give a path in it")
            if above := next((p for p in accumulate(names[:-1], "{}/{}".format) if p in paths), None):
                raise InvalidInput("files", file.path, f"{above} is a file; nothing can be in it")
        if self.part_bytes < 1:
            raise InvalidInput("part_bytes", self.part_bytes, "a part has bytes")
