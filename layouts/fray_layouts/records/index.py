"""The derived indexes: entries of pending jobs and of children, and the doorbell of a pool."""

from __future__ import annotations

from fray_layouts.bounds import AttemptNumber, Time
from fray_layouts.records.base import Record


class PendingEntry(Record, kw_only=True):
    """`pending/<pool>/...`: an index entry; everything that matters is in its name."""

    job: str
    attempt: AttemptNumber


class ChildEntry(Record, kw_only=True):
    """`children/<parent>/<attempt>/<child>`: an index entry; everything that matters is in its name."""

    child: str


class Doorbell(Record, kw_only=True):
    """`pools/<pool>/doorbell`: a hint that `pending/` changed; losing it costs latency only.

    Attributes:
        released_at: of a queue's doorbell: when the ringer last released an item.
        replaces: the version that a ring for a new plan replaced: who knew that one need not list the index.
    """

    rung_at: Time = 0.0
    released_at: Time = 0.0
    replaces: str = ""
