"""The part that all records have in common: whose write it is."""

from __future__ import annotations

import msgspec

MAX_RECENT_OPS = 8
"""Ids of earlier writes in a record. Whoever lost a reply finds his write among them unless more writes followed it
before he could look, which is within seconds; then he decides again, which is correct and only slower."""


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An object that is changed by compare-and-swap.

    Attributes:
        op: id of the write that made this body; unique, so that no two bodies of a name are equal.
        recent_ops: ids of the writes before it, newest first, at most `MAX_RECENT_OPS`.
        created_op: id of the write that created the name; kept for ever.
    """

    op: str = ""
    recent_ops: list[str] = []
    created_op: str = ""
