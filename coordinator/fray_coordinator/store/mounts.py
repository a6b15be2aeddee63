"""Tells file systems that keep the promises of local files from those that pass them on to another machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fray_coordinator.errors import StoreRefused

OVERRIDE_VARIABLE = "FRAY_ALLOW_NETWORK_FS"
NETWORK_TYPES = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|9p|fuse.*")


def network_file_system(folder: Path, mounts: str | None = None) -> str | None:
    """The type of the network file system that `folder` is on; None on a local one.

    Args:
        mounts: the text of /proc/mounts.
    """
    text = _mounts() if mounts is None else mounts
    real = Path(os.path.realpath(folder))
    found = ""
    longest = -1
    for line in text.splitlines():
        _, place, kind, *_ = line.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        # The later of two mounts on one place hides the earlier.
        if real.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = kind, len(point.parts)
    return found if NETWORK_TYPES.fullmatch(found) else None


def refuse_network(folder: Path) -> None:
    """Raise `StoreRefused` on a network file system, unless the user insists."""
    kind = network_file_system(folder)
    if kind and os.environ.get(OVERRIDE_VARIABLE) != "1":
        raise StoreRefused(
            f"{folder} is on a {kind} file system, where locks and renames do not hold between machines; use a bucket "
            f"or a local disk, or set {OVERRIDE_VARIABLE}=1 if only this machine ever uses this folder"
        )


def _mounts() -> str:
    return Path("/proc/mounts").read_text()
