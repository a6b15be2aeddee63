"""Whether processes of this host are alive."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process exists and has not ended; a zombie has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ended before the file was opened, or before it was read
        return False
    return state not in "ZX"
