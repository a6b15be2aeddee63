"""The only source of time and of random choices, so that a simulation can replace both."""

import asyncio
import random
import time
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
