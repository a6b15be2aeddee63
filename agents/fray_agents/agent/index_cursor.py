"""The place that an agent has reached in the pending index, behind entries that do not fit it.

**Invariant.** What fits an agent is met, however many entries that do not fit lie before it, and wherever it comes to
lie.

**Unsafe sequence.** Each poll begins at the head and ends after so many pages: what lies behind is met by nobody. Or it
begins where the last one ended: what comes to lie before that, or fits once more is free, is met by nobody.

**Why this cannot happen.** A poll begins with the page at the head, for what is urgent, and goes on where the cursor
stands. What was passed because too little was free is passed anew once more is free, and a round, however it went, ends
after a time that grows with what it has passed.
"""

from dataclasses import dataclass

from fray_layouts.records import Resources

ENTRIES_PER_INTERVAL = 2000
"""Entries passed for which a round lasts one repair interval more: half of what the polls of idle agents pass in one,
so that no round ends before it has come to the end of the index."""


@dataclass(slots=True)
class IndexCursor:
    """One agent's place in the index; keys are those of the index, "" is its head."""

    _never: str = ""
    _unfit: str = ""
    _room: Resources | None = None
    _began: float = 0.0
    _passed: int = 0

    @property
    def waits_for_room(self) -> bool:
        """Whether it has passed entries that would fit if more were free."""
        return self._room is not None

    def begin_round(self, now: float, interval: float) -> None:
        """Begin a round at the head, if the last one has lasted long enough.

        Args:
            now: boot time in seconds.
            interval: seconds between repairs.
        """
        if now - self._began >= interval * (1 + self._passed / ENTRIES_PER_INTERVAL):
            self._never, self._unfit, self._room, self._began, self._passed = "", "", None, now, 0

    def behind(self, free: Resources) -> str:
        """The key behind which to search for what fits `free`."""
        if self._room is not None and _exceeds(free, self._room):
            self._unfit, self._room = self._never, None
        return self._unfit

    def advance(self, key: str, count: int, free: Resources, for_ever: bool) -> None:
        """Of the `count` entries from `behind(free)` up to `key` none fits `free`, or, `for_ever`, this host."""
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
