"""Room on a disk: how a full one is told by those who write there, and by those who only look."""

import os
from pathlib import Path

LEAST_FREE = 8 * 10**6
"""Bytes without which no work is begun: a job's files, some chunks of its log, its record and its result."""

FULL_REMEDY = (
    "remove files there, or use a larger disk: until then nothing is written, and jobs that have ended still show as "
    "running"
)


def lack_of_room(folder: Path) -> str:
    """What the disk of `folder` has too little of, for people; "" if there is room, or nobody can tell."""
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
