"""Zones: where machines are requested, after what zones have answered.

**Invariant.** A zone that refused is avoided for a while, longer each time, and no other zone waits for it.

**Unsafe sequence.**

1. Zone A has no capacity, and zone B has some.
2. Each run of the scaler asks A again.
3. B is never asked.

**Why this cannot happen.** A refusal is recorded before anything is decided again, and decisions take the first zone
that is not avoided. The record of a refusal is dropped once the zone gives a machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fray_coordinator.backoff import exponential_wait
from fray_layouts.records import ProvisioningSpec, ZoneAnswer

BOOT_FAILURE = "boot-failure"
"""The kind of answer of a zone in which a machine never got its agents."""

PAUSES = {"stockout": 60.0, "quota": 120.0, "denied": 120.0, "invalid": 300.0, "unavailable": 10.0, BOOT_FAILURE: 300.0}
"""Seconds for which a zone is avoided after its first answer of each kind; each further answer doubles them."""

FIRST_PAUSE = 60.0
"""Seconds for which a zone is avoided after an answer of a kind that this version does not know."""

LONGEST_PAUSE = 1800.0
"""Seconds for which a zone is avoided at most: capacity comes back, and one request every half hour costs nothing."""

REMEMBERED = 3600.0
"""Seconds after the end of a pause within which another answer of the same kind still counts as one in a row."""


def open_zones(spec: ProvisioningSpec, zones: Mapping[str, ZoneAnswer], now: float) -> list[str]:
    """The zones that may be asked, the preferred one first; [""] for a provider without zones."""
    return [zone for zone in spec.zones or [""] if zone not in zones or zones[zone].until <= now]


def refusal(before: ZoneAnswer | None, kind: str, text: str, now: float) -> ZoneAnswer:
    """The record of a zone that has just refused."""
    times = before.times + 1 if before is not None and before.kind == kind else 1
    pause = exponential_wait(times, PAUSES.get(kind, FIRST_PAUSE), LONGEST_PAUSE)
    return ZoneAnswer(kind=kind, text=text, at=now, until=now + pause, times=times)


def with_refusal(
    zones: Mapping[str, ZoneAnswer], zone: str, kind: str, text: str, asked_at: float, now: float
) -> Mapping[str, ZoneAnswer]:
    """The zones' answers with a refusal of a request that was made at `asked_at`.

    If several requests were on their way when a zone first refused, only that refusal counts: the zone has no room, and
    that is one fact.
    """
    before = zones.get(zone)
    return zones if before is not None and before.at >= asked_at else {**zones, zone: refusal(before, kind, text, now)}


def remembered(zones: Mapping[str, ZoneAnswer], granted: Sequence[str], now: float) -> dict[str, ZoneAnswer]:
    """The answers that still count: neither old ones nor those of zones that have given a machine since."""
    return {zone: answer for zone, answer in zones.items() if zone not in granted and now <= answer.until + REMEMBERED}


def place_of(provider: str, zone: str) -> tuple[str, str]:
    """The zone and the region that agents there report; "" for each that they do not report."""
    if provider == "local":
        return "", ""
    if provider == "cloud_run":
        return "", zone
    return zone, re.sub(r"-[a-z]$", "", zone)
