"""The TPU chips of this host: each has a device file, which one process at a time can use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def chip_files(root: Path = Path("/")) -> list[Path]:
    """The device files of the chips: `/dev/accel<n>`, for newer kinds `/dev/vfio/<n>`. root: the parent of `/dev`."""
    return sorted((root / "dev").glob("accel[0-9]*")) or sorted((root / "dev/vfio").glob("[0-9]*"))


def chip_trouble(expected: int, root: Path = Path("/")) -> str:
    """Why the chips of this host cannot all be used now, as text for people; "" if they can.

    Only root sees a process of another user.

    Args:
        expected: number of chips that the host should have.
        root: the folder in which `/dev` and `/proc` are looked for.
    """
    files = chip_files(root)
    if len(files) < expected:
        return f"{len(files)} of its {expected} TPU chips have a device file"
    for process, file in _open_files(root):
        if file in map(str, files):
            return f"process {process.name} ({_program(process)}) has the TPU chip {file} open"
    return ""


def _open_files(root: Path) -> Iterator[tuple[Path, str]]:
    """The folder of each process in `/proc`, with each file that it has open."""
    for process in (root / "proc").glob("[0-9]*"):
        with suppress(OSError):  # it belongs to another user, or has ended meanwhile
            for descriptor in os.listdir(process / "fd"):
                with suppress(FileNotFoundError):  # it was closed meanwhile
                    yield process, os.readlink(process / "fd" / descriptor)


def _program(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "it has ended"
