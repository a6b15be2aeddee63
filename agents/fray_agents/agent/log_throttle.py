"""Warnings that are logged at most once an hour each."""

import logging
from dataclasses import dataclass, field

from fray_coordinator.clock import Clock
from fray_layouts.escaping import escaped

log = logging.getLogger("fray")

REPEAT_INTERVAL = 3600.0
"""Seconds until the same warning is logged again: often enough to be in today's log, too rare to flood it."""


@dataclass(slots=True)
class LogThrottle:
    """The warnings of one agent, each at most once an hour."""

    clock: Clock
    _logged_at: dict[str, float] = field(default_factory=dict)

    def warn(self, text: str, *args: object) -> None:
        """Log the warning, unless the same words were logged within the hour."""
        words = text % args
        if self.is_due(words):
            log.warning("%s", escaped(words))

    def is_due(self, subject: str) -> bool:
        """Whether nothing was logged about the subject within the hour; marks it as logged now."""
        now = self.clock.boottime()
        self._logged_at = {logged: at for logged, at in self._logged_at.items() if now - at < REPEAT_INTERVAL}
        if subject in self._logged_at:
            return False
        self._logged_at[subject] = now
        return True
