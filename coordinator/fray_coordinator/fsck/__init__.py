"""The check of a whole cluster for what does not fit together, and its repair with the services that agents use
themselves.

Called by `fray fsck` and `fray doctor`, and by tests after every scenario. A snapshot of everything is judged by plain
functions; what two snapshots show is a problem.

To read: `snapshot`, `report`, `checker`, then the checks by area; `areas` lists the folders of a root.
"""

from fray_coordinator.fsck.checker import check, repair
from fray_coordinator.fsck.report import Problem
from fray_coordinator.fsck.snapshot import take_snapshot

__all__ = ["Problem", "check", "repair", "take_snapshot"]
