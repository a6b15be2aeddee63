"""The index of owners: which entries stay, and which gangs must have one.

**Invariant.** The pass can find every owner that has not ended: it has an entry, or the next repair creates one.

**Unsafe sequence.**

1. Submitter S creates the entry of a gang and is slow.
2. A repair finds the entry without a record, and deletes it.
3. S creates the record, and no pass ever sees that gang.

**Why this cannot happen.** An entry without a record stays for as long as its submitter may still be at work. The
repair creates missing entries for all records that it knows. And an entry has no attempt in its name, so no entry can
be that of an earlier attempt.
"""

from fray_coordinator.protocol.placements.launching import is_given_up
from fray_coordinator.protocol.placements.owners import GANG, entry_of_owner
from fray_coordinator.protocol.placements.rounds import OwnerRecord, owner_of
from fray_coordinator.protocol.placements.votes import OwnerPhase, phase_of_owner
from fray_coordinator.protocol.transitions import Status
from fray_layouts.index_keys import PlacementKey
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import is_gang


def is_needed(entry: PlacementKey, record: OwnerRecord | None, now: float, settings: ClusterSettings) -> bool:
    """Whether an entry stays.

    Args:
        entry: as parsed; it was listed before `record` was read.
        record: that of the owner that the entry names; None if there is none.
        now: the storage's clock.
    """
    if record is None and entry.kind == GANG:
        return abs(now - entry.time) <= settings.quarantine
    if record is None:
        return not is_given_up(entry.time, now, settings)
    if isinstance(record, JobRecord) and not is_gang(record.spec):
        return False
    if isinstance(record, JobRecord) and record.status == Status.UNADMITTED:
        return True
    return phase_of_owner(record) is not OwnerPhase.OVER and entry_of_owner(owner_of(record)).key() == entry.key()


def entry_of_gang(job: JobRecord) -> PlacementKey | None:
    """The entry that a gang must have now; None for any other job, and for one that has ended or is not admitted."""
    if not is_gang(job.spec) or job.status == Status.UNADMITTED or phase_of_owner(job) is OwnerPhase.OVER:
        return None
    return entry_of_owner(owner_of(job))
