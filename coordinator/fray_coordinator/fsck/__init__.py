"""The check of a whole cluster for inconsistencies, and their repair with the services that agents use themselves.

The callers are `fray fsck`, `fray doctor`, and tests after every scenario. Plain functions judge a snapshot of
everything; a problem is what two snapshots show.

Read in this order: `snapshot`, `report`, `checker`, then the checks by area.
"""

from fray_coordinator.fsck.checker import check, repair
from fray_coordinator.fsck.report import Problem
from fray_coordinator.fsck.snapshot import take_snapshot

__all__ = ["Problem", "check", "repair", "take_snapshot"]
