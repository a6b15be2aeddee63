"""The position of an agent in the pending index, after entries that do not fit it.

**Invariant.** An agent finds each entry that fits it, however many entries that do not fit come before it, and wherever
in the index it is.

**Unsafe sequence.** Each poll begins at the head and ends after a fixed number of pages: no agent finds the entries
after that. Or each poll begins where the last one ended: no agent finds an entry that is added before that position, or
that fits once more is free.

**Why this cannot happen.** A poll begins with the page at the head, for urgent entries, and goes on at the cursor. When
more resources become free, the entries that were passed for lack of them are searched again. Each sweep ends after a
time that grows with the number of entries that it passed.
"""

from dataclasses import dataclass

from fray_layouts.records import Resources

ENTRIES_PER_INTERVAL = 2000
"""Passed entries that lengthen a sweep by one repair interval. It is half of what the polls of idle agents pass in that
time, so no sweep ends before it has reached the end of the index."""


@dataclass(slots=True)
class IndexCursor:
    """One agent's position in the index; keys are those of the index, "" is its head."""

    _never: str = ""
    _unfit: str = ""
    _room: Resources | None = None
    _began: float = 0.0
    _passed: int = 0

    @property
    def waits_for_room(self) -> bool:
        """Whether it has passed entries that would fit if more were free."""
        return self._room is not None

    def begin_sweep(self, now: float, interval: float) -> None:
        """Begin a sweep at the head, if the last one has lasted long enough.

        Args:
            now: boot time in seconds.
            interval: seconds between repairs.
        """
        if now - self._began >= interval * (1 + self._passed / ENTRIES_PER_INTERVAL):
            self._never, self._unfit, self._room, self._began, self._passed = "", "", None, now, 0

    def behind(self, free: Resources) -> str:
        """The key after which to search for entries that fit `free`."""
        if self._room is not None and _exceeds(free, self._room):
            self._unfit, self._room = self._never, None
        return self._unfit

    def advance(self, key: str, count: int, free: Resources, for_ever: bool) -> None:
        """Pass `count` entries from `behind(free)` up to `key`: none fits `free` or, with `for_ever`, this host."""
        if for_ever and self._never == self._unfit:
            self._never = key
        else:
            self._room = free
        self._unfit = key
        self._passed += count


def _exceeds(free: Resources, room: Resources) -> bool:
    if max(free.device_shares, default=0) > max(room.device_shares, default=0):
        return True
    return any(getattr(free, what) > getattr(room, what) for what in ("cpu", "memory", "disk", "device_count"))
