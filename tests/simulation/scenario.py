"""What a seed's cluster looks like and what befalls it: all drawn from the seed, all printed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from tests.simulation.weather import Rates


def between(draw: random.Random, lowest: float, highest: float) -> float:
    """Evenly on a logarithmic scale: often little, now and then a lot."""
    return lowest * (highest / lowest) ** draw.random()


class Plan:
    """A dataclass that is printed field by field."""

    __slots__ = ()

    def __str__(self) -> str:
        shown = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return " ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown
        )


@dataclass(frozen=True, slots=True)
class Hardships(Plan):
    """What is wrong with machines and jobs from the beginning. Shares are of all machines, jobs or calls.

    Attributes:
        newer: machines and users with the newer version, which writes a field that the others do not know.
        broken_hosts: machines that fail every start of a task.
        killers: jobs that kill their host.
        stubborn: jobs that ignore SIGTERM.
        clock_offset: seconds that a clock is off at most; clock_drift: how much it is too fast or too slow at most.
    """

    newer: float
    broken_hosts: float
    killers: float
    stubborn: float
    clock_offset: float
    clock_drift: float

    @staticmethod
    def drawn(draw: random.Random) -> Hardships:
        return Hardships(
            newer=draw.uniform(0.1, 0.9),
            broken_hosts=between(draw, 0.05, 0.4),
            killers=between(draw, 0.005, 0.05),
            stubborn=between(draw, 0.02, 0.2),
            clock_offset=between(draw, 10, 600),
            clock_drift=between(draw, 0.0001, 0.01),
        )


@dataclass(frozen=True, slots=True)
class Scenario(Plan):
    """One seed's plan. Times in virtual seconds; `..._every`: mean time between two such events.

    Attributes:
        storm: how long faults and users are active.
        patience: how long one call to the store goes on trying.
        rests: whether the run goes on after the calm until retention has removed everything.
    """

    hosts: int
    users: int
    pause: float
    storm: float
    patience: float
    rests: bool
    crash_every: float
    freeze_every: float
    preempt_every: float
    storm_of_sigterms_every: float
    partition_every: float
    outage_every: float
    outage_length: float
    once_every: float
    rates: Rates

    @staticmethod
    def drawn(draw: random.Random) -> Scenario:
        def every(shortest: float) -> float:
            return shortest * 10 ** draw.random()

        return Scenario(
            hosts=draw.choice([2, 3, 3, 4, 5, 6]),
            users=draw.choice([1, 2, 3]),
            pause=draw.uniform(3, 20),
            storm=draw.uniform(300, 900),
            patience=draw.choice([60.0, 8.0]),
            rests=draw.random() < 0.25,
            crash_every=every(60),
            freeze_every=every(60),
            preempt_every=every(100),
            storm_of_sigterms_every=every(300),
            partition_every=every(80),
            outage_every=every(200),
            outage_length=draw.uniform(40, 300),
            once_every=every(15),
            rates=Rates.drawn(draw),
        )
