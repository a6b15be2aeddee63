"""What can go wrong, how often, drawn from the seed: per request, and per participant."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

STORM_RATES = {
    "fail_before": (0.002, 0.08),
    "applied_then_error": (0.002, 0.08),
    "applied_then_dropped": (0.002, 0.08),
    "applied_late": (0.002, 0.06),
    "twice": (0.002, 0.08),
    "conflict": (0.001, 0.04),
    "too_many": (0.001, 0.04),
    "slow": (0.002, 0.04),
    "crash": (0.0002, 0.01),
    "freeze": (0.0002, 0.01),
}
"""Lowest and highest share of requests that suffer. `crash` and `freeze` befall who sends a write,
or, a fifth as often, a read: around it."""


@dataclass(slots=True)
class Rates:
    """Shares of one participant's requests."""

    fail_before: float = 0.0
    applied_then_error: float = 0.0
    applied_then_dropped: float = 0.0
    applied_late: float = 0.0
    twice: float = 0.0
    conflict: float = 0.0
    too_many: float = 0.0
    slow: float = 0.0
    crash: float = 0.0
    freeze: float = 0.0

    @staticmethod
    def drawn(draw: random.Random) -> Rates:
        """Some participants suffer a lot, some hardly at all: drawn evenly on a logarithmic scale."""
        return Rates(**{name: low * (high / low) ** draw.random() for name, (low, high) in STORM_RATES.items()})

    def table(self) -> list[tuple[float, str]]:
        """The faults of requests with their cumulated shares, for one draw per request."""
        total, rows = 0.0, []
        for field in fields(self)[:8]:
            total += getattr(self, field.name)
            rows.append((total, field.name))
        return rows

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name):.2%}" for field in fields(self))
