"""The only source of time and of random choices, so that a simulation can replace both.

It also has the pauses of repeated requests. The library tenacity is used only for Google's APIs. Elsewhere it would
cost too much: 80 us a call even when nothing fails, ten times a read from a store in memory, and 20 ms of import, more
than all of `import fray` takes.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from itertools import count
from typing import Protocol

from fray_layouts.key_encoding import BASE32_DIGITS


class Clock(Protocol):
    """Time as one process measures it."""

    def boottime(self) -> float:
        """Seconds that never go back and also count while the machine sleeps; trust and ages are measured with it."""

    def wall(self) -> float:
        """This host's time of day, in seconds since the epoch; on some hosts it is wrong by minutes."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of this machine."""

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RandomSource(random.Random):
    """The source of every random choice: ids of writes, suffixes of names, jitter. With a seed, the choices repeat."""

    def token(self, length: int = 12) -> str:
        """A random string of `length` characters (5 bits each), safe in keys, paths and host names."""
        return "".join(self.choices(BASE32_DIGITS, k=length))

    def unique_id(self) -> str:
        """An id of 80 bits, unique among all writes, writers and holders."""
        return self.token(16)


def system_random() -> RandomSource:
    """A source seeded by the operating system; each process makes its own, and a fork must not share it."""
    return RandomSource(random.SystemRandom().getrandbits(128))


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
