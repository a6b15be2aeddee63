"""The records of a job's outputs: what its record says of them, and the manifest that lists them."""

import msgspec

from fray_layouts.bounds import Count, Key

OUTPUT_PART_BYTES = 16 * 1024**2
"""Bytes of a part of a job's outputs: some of them are in memory at a time, and a bucket takes one in a second."""
MAX_OUTPUT_FILES = 10_000
"""Files of a job's outputs: a manifest of as many is read and written in a second."""
MAX_OUTPUT_BYTES = 100 * 1024**3
"""Bytes of a job's outputs: a quarter of an hour to a bucket. What is larger is better written there by the job."""


class KeptOutputs(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The outputs of a job that succeeded: `files` of `size` bytes in all, listed in the object `key`.

    Attributes:
        parts: objects that hold their bytes: `<key>-<number>`, from 1.
    """

    key: Key
    parts: Count = 0
    files: Count = 0
    size: Count = 0


class OutputFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file of a job's outputs: its path from the working directory, and its bytes."""

    path: str
    size: Count = 0
    executable: bool = False


class LeftOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that a job's patterns name and that is not among its outputs: where it was, and why."""

    path: str
    why: str


class OutputManifest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`work/<job_id>/<attempt>/<replica>/outputs`: the files that an attempt leaves, in the order of their bytes.

    Attributes:
        files: their bytes, one file after the other, are cut into parts.
        part_bytes: length of each part but the last.
        left_out: the first of what was not kept.
    """

    files: list[OutputFile] = []
    part_bytes: Count = OUTPUT_PART_BYTES
    left_out: list[LeftOut] = []
