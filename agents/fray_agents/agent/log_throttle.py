"""Warnings about what stays wrong: said at once, and then once an hour, however often it is met."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fray_coordinator.clock import Clock
from fray_layouts.escaping import escaped

log = logging.getLogger("fray")

REPEAT_INTERVAL = 3600.0
"""Seconds until the same warning is said again."""


@dataclass(slots=True)
class LogThrottle:
    """The warnings of one agent that it would repeat with every look."""

    clock: Clock
    _said: dict[str, float] = field(default_factory=dict)

    def warn(self, text: str, *args: object) -> None:
        """Log the warning, unless the same words were logged within the hour."""
        words = text % args
        if self.is_due(words):
            log.warning("%s", escaped(words))

    def is_due(self, subject: str) -> bool:
        """Whether nothing was said about the subject within the hour; it is to be said now."""
        now = self.clock.boottime()
        self._said = {said: at for said, at in self._said.items() if now - at < REPEAT_INTERVAL}
        if subject in self._said:
            return False
        self._said[subject] = now
        return True
