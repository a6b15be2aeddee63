"""The one source of time and of random choices, so that a simulation can replace both."""

import asyncio
import random
import time
from typing import Protocol

from fray_layouts.key_encoding import BASE32_DIGITS


class Clock(Protocol):
    """Time as one process sees it."""

    def boottime(self) -> float:
        """Seconds that never go back and go on while the machine sleeps; trust and ages are measured with it."""

    def wall(self) -> float:
        """This host's idea of the time of day, seconds since the epoch; wrong by minutes on some hosts."""

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
    """The source of every random choice: ids of writes, suffixes of names, jitter. Seeded, it repeats itself."""

    def token(self, length: int = 12) -> str:
        """A random string of `length` characters (5 bits each), safe in keys, paths and host names."""
        return "".join(self.choices(BASE32_DIGITS, k=length))

    def unique_id(self) -> str:
        """An id of 80 bits, for what must never be mistaken for another: a write, a writer, a holder."""
        return self.token(16)


def system_random() -> RandomSource:
    """A source seeded by the operating system; make one per process, never share one across a fork."""
    return RandomSource(random.SystemRandom().getrandbits(128))
