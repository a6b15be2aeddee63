"""Records of the derived indexes: entries for pending jobs and for children, and a pool's doorbell."""

from __future__ import annotations

from fray_layouts.bounds import AttemptNumber, Time
from fray_layouts.records.base import Record


class PendingEntry(Record, kw_only=True):
    """`pending/<pool>/...`: an index entry; its name holds everything that matters."""

    job: str
    attempt: AttemptNumber


class ChildEntry(Record, kw_only=True):
    """`children/<parent>/<attempt>/<child>`: an index entry; its name holds everything that matters."""

    child: str


class Doorbell(Record, kw_only=True):
    """`pools/<pool>/doorbell`: a hint that `pending/` has changed; losing it only costs latency.

    Attributes:
        released_at: for a queue's doorbell: when the writer last released an item.
        replaces: the version that a ring for a new plan replaced; a reader that knew that version need not list the
            index.
        cluster: the id of the writer's cluster, for readers whose root another cluster has replaced.
    """

    rung_at: Time = 0.0
    released_at: Time = 0.0
    replaces: str = ""
    cluster: str = ""
