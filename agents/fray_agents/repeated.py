"""Warnings about what stays wrong: said at once, and then once an hour, however often it is met."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fray_coordinator.clock import Clock
from fray_layouts.text import escaped

log = logging.getLogger("fray")

AGAIN = 3600.0
"""Seconds until the same warning is said again."""


@dataclass(slots=True)
class Repeated:
    """The warnings of one agent that it would repeat with every look."""

    clock: Clock
    _said: dict[str, float] = field(default_factory=dict)

    def warn(self, text: str, *args: object) -> None:
        """Log the warning, unless the same words were logged within the hour."""
        words, now = escaped(text % args), self.clock.boottime()
        self._said = {said: at for said, at in self._said.items() if now - at < AGAIN}
        if words not in self._said:
            self._said[words] = now
            log.warning(words)
