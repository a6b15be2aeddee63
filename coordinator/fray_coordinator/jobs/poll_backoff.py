"""The pauses between polls: short after a change, then longer and longer while nothing happens."""

from collections.abc import Iterator
from dataclasses import dataclass

from fray_coordinator.backoff import backoff
from fray_coordinator.core import Core

_GROWTH = 1.5
"""Ratio of each pause to the one before. All pauses before one add up to twice that pause, so a poll notices an event
at most half as late again as the event took to happen."""
_MAX_PAUSE_INTERVALS = 10
"""Longest pause on a bucket, in poll intervals; there every poll costs money."""
_EAGER_SHARE = 0.25
"""First pause, as a share of the poll interval, after something was begun that may be done at once."""
_MIN_LOCAL_PAUSE = 0.005
"""Shortest pause in seconds where requests cost nothing, so that the end of a short job is noticed. A poll takes 0.1
ms."""
_LOCAL_PAUSE_RATIO = 4
"""Seconds of pause for each second that a local poll took, so that polling takes at most a fifth of the time."""


@dataclass(slots=True)
class PollBackoff:
    """The pauses of one poller."""

    core: Core
    _pauses: Iterator[float] | None = None

    def reset(self) -> None:
        """Something happened: poll soon again."""
        self._pauses = None

    def expect_soon(self) -> None:
        """Something was begun that may end at once: poll sooner than after a change, and then more and more rarely."""
        interval = self.core.settings.poll_interval
        self._pauses = None if self.core.store.local else self._backoff(interval * _EAGER_SHARE)

    async def sleep(self, poll_took: float = 0.0, at_most: float | None = None) -> None:
        """Wait until the next poll. poll_took: seconds; at_most: seconds until a deadline."""
        pause = self.next_pause(poll_took)
        await self.core.clock.sleep(pause if at_most is None else min(pause, max(at_most, 0.0)))

    def next_pause(self, poll_took: float = 0.0) -> float:
        """Seconds until the next poll, for callers that wait by other means than `sleep`."""
        local, interval = self.core.store.local, self.core.settings.poll_interval
        if self._pauses is None:
            self._pauses = self._backoff(min(_MIN_LOCAL_PAUSE, interval) if local else interval)
        pause = next(self._pauses)
        return max(pause, poll_took * _LOCAL_PAUSE_RATIO) if local else self.core.jittered(pause)

    def _backoff(self, first: float) -> Iterator[float]:
        intervals = 1 if self.core.store.local else _MAX_PAUSE_INTERVALS
        return backoff(first, self.core.settings.poll_interval * intervals, _GROWTH)
