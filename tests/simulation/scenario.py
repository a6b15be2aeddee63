"""The plan of a seed's cluster and its faults, drawn from the seed and printed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

from tests.simulation.weather import Rates


def between(draw: random.Random, lowest: float, highest: float) -> float:
    """Draw evenly on a logarithmic scale: often small, now and then large."""
    return float(lowest * (highest / lowest) ** draw.random())


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
    """Faults that machines have from the beginning. Shares are of all machines.

    Attributes:
        newer: share of machines and users with the newer version, which writes a field that the others do not know.
        broken_hosts: machines that fail every start of a task.
        clock_offset: most seconds that a clock is off. clock_drift: most that it is too fast or too slow.
    """

    newer: float
    broken_hosts: float
    clock_offset: float
    clock_drift: float

    @staticmethod
    def drawn(draw: random.Random) -> Hardships:
        return Hardships(
            newer=draw.uniform(0.1, 0.9),
            broken_hosts=between(draw, 0.05, 0.4),
            clock_offset=between(draw, 10, 600),
            clock_drift=between(draw, 0.0001, 0.01),
        )


USUAL = {
    "submit_one": 8.0,
    "submit_many": 1.0,
    "submit_by_id": 4.0,
    "submit_endless": 1.5,
    "own_one": 2.0,
    "leave": 0.3,
    "stop_endless": 1.0,
    "stop_one": 2.0,
    "stop_parent": 1.0,
    "drop": 3.0,
    "drop_rubbish": 0.3,
    "overwrite": 1.0,
    "take_back": 0.5,
    "drain_one": 0.2,
    "wait": 1.0,
}


class Habits(dict[str, float]):
    """How often users do each of these actions, as weights."""

    @staticmethod
    def drawn(draw: random.Random, usual: dict[str, float]) -> Habits:
        """Draw weights up to three times larger or smaller than usual."""
        return Habits({name: between(draw, weight / 3, weight * 3) for name, weight in usual.items() if weight})

    def __str__(self) -> str:
        return " ".join(f"{name}={weight:.3g}" for name, weight in self.items())


@dataclass(frozen=True, slots=True)
class Perils(Plan):
    """Faults besides those of the storage and ends of processes: strangers, refusals, exceptions, stuck tasks.

    Each affects a share of the seeds (`SHARES`), so some seeds have one of them, some have all, some have none.

    Attributes:
        stranger_every: average seconds between two actions of strangers; infinite for none.
        habits: what strangers do.
        refuse_every: seconds between two bursts of refusals; infinite for none.
        mishaps: share of the requests, sleeps, decodings and files of an agent that end in an exception.
        stuck: share of the tasks that hear nothing from their agent for a while.
        flood: number of useless files that are dropped into the inbox at once when the storm is over.
    """

    stranger_every: float
    habits: Habits
    refuse_every: float
    mishaps: float
    stuck: float
    flood: int

    @staticmethod
    def drawn(draw: random.Random, shares: dict[str, float], usual: dict[str, float]) -> Perils:
        """Draw it. shares: like `SHARES`; usual: like `STRANGE`."""
        comes = {peril: draw.random() < share for peril, share in shares.items()}
        return Perils(
            stranger_every=between(draw, 2, 60) if comes["strangers"] else math.inf,
            habits=Habits.drawn(draw, usual),
            refuse_every=between(draw, 60, 600) if comes["refusals"] else math.inf,
            mishaps=between(draw, 0.0001, 0.003) if comes["mishaps"] else 0.0,
            stuck=between(draw, 0.02, 0.3) if comes["stuck"] else 0.0,
            flood=FLOOD if comes["flood"] else 0,
        )


SHARES = {"strangers": 0.4, "refusals": 0.4, "mishaps": 0.4, "stuck": 0.4, "flood": 0.2}
"""Shares of the seeds in which there are strangers, bursts of refusals, exceptions, stuck tasks, and a flood."""

FLOOD = 600
"""Files; to look at all of them one by one takes longer than the lease of the pass lasts."""

STRANGE = {
    "leave_odd_object": 8.0,
    "copy_record": 1.0,
    "copy_in_two_parts": 0.5,
    "spoil_hint": 1.0,
    "spoil_entry": 1.0,
    "spoil_pass": 0.5,
    "spoil_job": 0.5,
    "spoil_agent": 0.5,
    "hold_agent": 0.3,
    "restore_job": 0.3,
    "spoil_archived": 0.5,
    "copy_into_archive": 0.3,
    "touch": 1.0,
    "tidy_some": 0.5,
}
"""What strangers do, as weights."""


@dataclass(frozen=True, slots=True)
class People(Plan):
    """The actions of users, and their jobs.

    Attributes:
        pause: average seconds between two actions of a user.
        killers, stubborn: shares of their jobs that kill their host, and that ignore SIGTERM.
        hang_ups: share of the stops whose sender is gone before it sends the mail.
    """

    pause: float
    killers: float
    stubborn: float
    habits: Habits
    hang_ups: float

    @staticmethod
    def drawn(draw: random.Random, usual: dict[str, float]) -> People:
        """Draw it. usual: like `USUAL`."""
        return People(
            pause=draw.uniform(3, 20),
            killers=between(draw, 0.005, 0.05),
            stubborn=between(draw, 0.02, 0.2),
            habits=Habits.drawn(draw, usual),
            hang_ups=between(draw, 0.05, 0.5),
        )


@dataclass(frozen=True, slots=True)
class Scenario(Plan):
    """One seed's plan. Times in virtual seconds; `..._every`: mean time between two such events.

    Attributes:
        storm: how long faults and users are active.
        patience: how long one call to the store is retried.
        rests: whether the run continues after the calm until retention has removed everything.
        quarantine, gives_up: as in `Settings` and `protocol.retention`; a quarter of the seeds are hasty, so that jobs
            and agents are removed, and ids used again, while the storm lasts.
        latest: most time until a write lands after its sender gave it up. longest_freeze: of any process. Both are
            short if the quarantine is.
        outage_grace: as in `Settings`.
        unwritable_every: writes fail while reads are answered, everywhere or in one area.
    """

    hosts: int
    users: int
    storm: float
    patience: float
    rests: bool
    quarantine: float
    gives_up: float
    latest: float
    longest_freeze: float
    outage_grace: float
    crash_every: float
    freeze_every: float
    preempt_every: float
    storm_of_sigterms_every: float
    partition_every: float
    outage_every: float
    outage_length: float
    unwritable_every: float
    once_every: float
    rates: Rates

    @staticmethod
    def drawn(draw: random.Random) -> Scenario:
        def every(shortest: float) -> float:
            return shortest * 10 ** draw.random()

        hasty = draw.random() < 0.25
        return Scenario(
            hosts=draw.choice([2, 3, 3, 4, 5, 6]),
            users=draw.choice([1, 2, 3]),
            storm=draw.uniform(300, 900),
            patience=8.0 if hasty else draw.choice([60.0, 8.0]),
            rests=hasty or draw.random() < 0.25,
            quarantine=180.0 if hasty else 600.0,
            gives_up=120.0 if hasty else 3600.0,
            latest=20.0 if hasty else 120.0,
            longest_freeze=36.0 if hasty else 200.0,
            outage_grace=between(draw, 30, 900),
            crash_every=every(60),
            freeze_every=every(60),
            preempt_every=every(100),
            storm_of_sigterms_every=every(300),
            partition_every=every(80),
            outage_every=every(200),
            outage_length=draw.uniform(40, 300),
            unwritable_every=every(200),
            once_every=every(15),
            rates=Rates.drawn(draw),
        )
