"""The rates of faults, drawn from the seed, for requests and for participants."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

OF_REQUESTS = {
    "fail_before": (0.002, 0.08),
    "applied_then_error": (0.002, 0.08),
    "applied_then_dropped": (0.002, 0.08),
    "applied_late": (0.002, 0.06),
    "twice": (0.002, 0.08),
    "conflict": (0.001, 0.04),
    "too_many": (0.001, 0.04),
    "slow": (0.002, 0.04),
}
"""Lowest and highest share of requests with each fault."""

OF_SENDERS = {
    "crash": (0.0002, 0.01),
    "freeze": (0.0002, 0.01),
}
"""Lowest and highest share of requests (writes and every fifth read) around which this happens to their sender."""


@dataclass(slots=True)
class Rates:
    """Shares of one participant's requests."""

    fail_before: float
    applied_then_error: float
    applied_then_dropped: float
    applied_late: float
    twice: float
    conflict: float
    too_many: float
    slow: float
    crash: float
    freeze: float

    @staticmethod
    def drawn(draw: random.Random) -> Rates:
        """Draw rates evenly on a logarithmic scale, so that some participants have many faults and some hardly any."""
        bounds = OF_REQUESTS | OF_SENDERS
        return Rates(**{name: low * (high / low) ** draw.random() for name, (low, high) in bounds.items()})

    def table(self) -> list[tuple[float, str]]:
        """The faults of requests with their cumulated shares, for one draw per request."""
        total, rows = 0.0, []
        for name in OF_REQUESTS:
            total += getattr(self, name)
            rows.append((total, name))
        return rows

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name):.2%}" for field in fields(self))
