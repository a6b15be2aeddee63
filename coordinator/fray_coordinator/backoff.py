"""Exponential back-off: how long whoever has failed waits before trying again; and how long one waits without a word.

These few lines and not tenacity, because of what was measured: its retrying costs 80 us a call even when nothing fails,
ten times a read from a store in memory, and its import 20 ms of the 150 ms that `import fray` may take.
"""

from collections.abc import Iterator
from itertools import count

STORE_PAUSES = (1.0, 8.0)
"""Seconds between two attempts at what the store must do, the first and the longest. An attempt at a store that is away
has lasted for a minute already (`Store.patience`); a refusal comes at once, and eight seconds keep it from filling logs
and bills."""

WARN_AFTER = 2.0
"""Seconds that something waits before its waiter is told why: where there is room a claim takes less, and a person who
sees nothing for longer wonders."""

_MAX_DOUBLINGS = 64
"""By then every wait is the longest; 1,024 doublings would be more than a float holds."""


def exponential_wait(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Seconds to wait after so many failures in a row: none after none, `first` after one, then `factor` times more."""
    return min(longest, first * factor ** min(failures - 1, _MAX_DOUBLINGS)) if failures > 0 else 0.0


def backoff(first: float, longest: float, factor: float = 2.0) -> Iterator[float]:
    """The waits after one failure, after two, and so on without end. Whoever has succeeded begins with a new one."""
    return (exponential_wait(failures, first, longest, factor) for failures in count(1))
