"""The fields that all records share, by which a writer recognizes its own writes."""

from __future__ import annotations

import msgspec

MAX_RECENT_OPS = 8
"""Number of earlier write ids that a record keeps. A writer that lost a reply looks for its id among them within
seconds. If more writes followed before it looked, it does not find the id and decides again: correct, only slower."""


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A JSON object that is changed by compare-and-swap.

    Attributes:
        op: id of the write that made this body; it is unique, so no two bodies of one object are equal.
        recent_ops: ids of the writes before it, newest first, at most `MAX_RECENT_OPS`.
        created_op: id of the write that created the object; kept for ever.
    """

    op: str = ""
    recent_ops: list[str] = []
    created_op: str = ""
