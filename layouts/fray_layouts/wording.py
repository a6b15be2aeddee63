"""Words for messages to people."""

from collections.abc import Sequence

from fray_layouts.units import format_bytes


def counted(count: float, noun: str) -> str:
    """A number and its noun, in the singular for one: "1 job", "2 jobs", "0.5 cores"."""
    return f"{count:.12g} {noun}{'s' * (count != 1)}"


def files_text(count: int, size: int) -> str:
    """The number of files and their total size in bytes: "3 files, 1.5 MB"."""
    return f"{counted(count, 'file')}, {format_bytes(size)}"


def first_names(names: Sequence[str], most: int) -> str:
    """The first `most` names, separated by commas, and the number of the others: "a, b and 7 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
