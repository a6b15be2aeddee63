"""The records of a job's outputs: the summary in the job's record, and the manifest that lists the files."""

import msgspec

from fray_layouts.bounds import Count, Key

OUTPUT_PART_BYTES = 16 * 1024**2
"""Bytes of one part of a job's outputs. A few parts are in memory at a time, and a bucket stores one within a
second."""
MAX_OUTPUT_FILES = 10_000
"""Largest number of output files of a job; a manifest of this size is read or written in a second."""
MAX_OUTPUT_BYTES = 100 * 1024**3
"""Bytes of a job's outputs, which take a quarter of an hour to a bucket. A job should itself write what is larger."""


class KeptOutputs(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The outputs of a job that succeeded: `files` files of `size` bytes in total, listed in the object `key`.

    Attributes:
        parts: number of objects that hold the bytes: `<key>-<number>`, from 1.
    """

    key: Key
    parts: Count = 0
    files: Count = 0
    size: Count = 0


class OutputFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file of a job's outputs: its path relative to the working directory, and its size in bytes."""

    path: str
    size: Count = 0
    executable: bool = False


class LeftOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file that matches a job's patterns but is not among its outputs: its path, and the reason."""

    path: str
    why: str


class OutputManifest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`work/<job_id>/<attempt>/<replica>/outputs`: the files of an attempt, in the order of their bytes.

    Attributes:
        files: the bytes of all files, one after the other, are cut into parts.
        part_bytes: length of every part except the last.
        left_out: the first of the files that were not kept.
    """

    files: list[OutputFile] = []
    part_bytes: Count = OUTPUT_PART_BYTES
    left_out: list[LeftOut] = []
