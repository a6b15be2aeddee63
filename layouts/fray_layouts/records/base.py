"""What all records share: the fields by which a writer recognizes its own writes, and the check of their relations.

Types and bounds say what one field may hold. `check` says what the fields of one object must have in common: a number
that counts others, an index below a length, names that occur once. Each struct has its check beside its fields, and
`codec.decode` calls it, so no decision ever sees an object that contradicts itself. A check compares only what every
version of Fray means by these fields. It never refuses a word that it does not know: a newer version may have written
it, and Fray leaves such an object alone.
"""

from __future__ import annotations

import msgspec

MAX_RECENT_OPS = 8
"""Number of earlier write ids that a record keeps. A writer that lost a reply looks for its id among them within
seconds. If more writes followed before it looked, it does not find the id and decides again: correct, only slower."""


class CheckedStruct(msgspec.Struct):
    """Base of the objects whose fields must agree with one another."""

    def check(self) -> None:
        """Raise InvalidInput, which names a field, its value and the remedy, if the fields contradict one another."""


class Record(CheckedStruct, kw_only=True, omit_defaults=True):
    """A JSON object that is changed by compare-and-swap.

    Attributes:
        op: id of the write that made this body; it is unique, so no two bodies of one object are equal.
        recent_ops: ids of the writes before it, newest first, at most `MAX_RECENT_OPS`.
        created_op: id of the write that created the object; kept for ever.
    """

    op: str = ""
    recent_ops: list[str] = []
    created_op: str = ""
