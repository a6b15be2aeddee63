"""Checking a cluster for what does not fit together, and repairing it with the services that agents use themselves."""

from __future__ import annotations

from fray_coordinator.fsck.checker import check, repair
from fray_coordinator.fsck.report import Problem
from fray_coordinator.fsck.snapshot import take_snapshot

__all__ = ["Problem", "check", "repair", "take_snapshot"]
