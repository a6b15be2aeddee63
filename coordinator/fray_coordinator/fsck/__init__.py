"""Checking a cluster for what does not fit together, and repairing it with the services that agents use themselves."""

from __future__ import annotations

from fray_coordinator.fsck.checkup import check, repair
from fray_coordinator.fsck.picture import take_picture
from fray_coordinator.fsck.trouble import Trouble

__all__ = ["Trouble", "check", "repair", "take_picture"]
