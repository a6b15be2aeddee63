"""The check for free room on a disk, and the remedy for a full one."""

import os
from pathlib import Path

LEAST_FREE = 8 * 10**6
"""Bytes that must be free to start work: for a job's files, some chunks of its log, its record and its result."""

FULL_REMEDY = (
    "remove files there, or use a larger disk: until then nothing is written, and jobs that have ended still show as "
    "running"
)


def lack_of_room(folder: Path) -> str:
    """A sentence about what the disk of `folder` lacks, for people; "" if there is room or the check fails."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    free = disk.f_bavail * disk.f_frsize
    total = disk.f_blocks * disk.f_frsize
    if total < LEAST_FREE:
        least = LEAST_FREE / 10**6
        return f"the disk of {folder} is too small: it has {total / 10**6:.1f} MB, and {least:,.0f} MB have to be free"
    if free < LEAST_FREE:
        return f"the disk of {folder} is full: {free / 10**6:.1f} of its {total / 10**6:,.0f} MB are free"
    if disk.f_files and not disk.f_favail:
        return f"the disk of {folder} is full: it can take no more files ({disk.f_files:,} are there)"
    return ""
