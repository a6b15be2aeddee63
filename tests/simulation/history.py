"""The history of a run, line by line: hashed, so that two runs can be compared, and readable by object."""

from __future__ import annotations

import hashlib


class History:
    """All lines of one run. `digest` is of all of them."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str, str]] = []
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, now: float, who: str, what: str, more: str = "") -> None:
        """Participant `who` did `what` (a verb and the object's key or id)."""
        line = (now, who, what, more)
        self.lines.append(line)
        self._hash.update(_text(line).encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def text(self) -> str:
        return "".join(map(_text, self.lines))

    def about(self, names: list[str], limit: int = 120) -> str:
        """The last lines that mention one of `names`."""
        told = [
            line for line in self.lines if any(name in line[2] or name in line[3] or name == line[1] for name in names)
        ]
        left_out = f"  ... {len(told) - limit} lines before\n" if len(told) > limit else ""
        return left_out + "".join("  " + _text(line) for line in told[-limit:])


def _text(line: tuple[float, str, str, str]) -> str:
    now, who, what, more = line
    return f"{now:10.3f} {who:<12} {what} {more}\n"
