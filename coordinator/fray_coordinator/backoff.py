"""Exponential back-off, and the time after which a waiter is told the reason.

The library tenacity is used only for Google's APIs. Elsewhere it would cost too much: 80 us a call even when nothing
fails, ten times a read from a store in memory, and 20 ms of import, more than all of `import fray` takes.
"""

from collections.abc import Iterator
from itertools import count

STORE_PAUSES = (1.0, 8.0)
"""Seconds between two attempts at a store operation: the first pause and the longest. While the store is unreachable,
an attempt itself lasts a minute (`Store.patience`). A refusal comes at once, and eight seconds keep it from filling
logs and raising bills."""

JITTER = (0.8, 1.2)
"""A wait is multiplied by a random number in this range, so that many participants do not act in step."""

WARN_AFTER = 2.0
"""Seconds of waiting after which a waiter is told the reason. A claim takes less where there is room, and a person who
sees nothing for longer wonders what is wrong."""

_MAX_DOUBLINGS = 64
"""Doublings after which every wait is the longest. 1,024 doublings would overflow a float."""


def exponential_wait(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Seconds to wait after `failures` failures in a row: 0 after none, `first` after one, then `factor` times more."""
    return min(longest, first * factor ** min(failures - 1, _MAX_DOUBLINGS)) if failures > 0 else 0.0


def backoff(first: float, longest: float, factor: float = 2.0) -> Iterator[float]:
    """The waits after one failure, after two, and so on without end. After a success, start with a new iterator."""
    return (exponential_wait(failures, first, longest, factor) for failures in count(1))
