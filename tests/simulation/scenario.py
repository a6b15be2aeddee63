"""What a seed's cluster looks like and what befalls it: all drawn from the seed, all printed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from tests.simulation.weather import Rates


@dataclass(frozen=True, slots=True)
class Scenario:
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

    def __str__(self) -> str:
        shown = (getattr(self, field.name) for field in fields(self))
        texts = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in shown)
        return " ".join(f"{field.name}={text}" for field, text in zip(fields(self), texts, strict=True))
