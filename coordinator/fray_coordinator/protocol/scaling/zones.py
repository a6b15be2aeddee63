"""Zones: where machines are asked for, after what zones have answered.

**Invariant.** A zone that refused is left alone for a while, longer each time, and no other waits for it.

**Unsafe sequence.** The first zone has no capacity; each look asks it again, and the second one, which has some, is
never asked.

**Why this cannot happen.** A refusal is noted before anything is decided again, and decisions take the first zone
that is not avoided. Notes are forgotten once the zone gives a machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fray_layouts.records import ProvisioningSpec, ZoneAnswer

BOOT_FAILURE = "boot-failure"
"""The kind of answer of a zone whose machine never had its agents."""

PAUSES = {"stockout": 60.0, "quota": 120.0, "denied": 120.0, "invalid": 300.0, "unavailable": 10.0, BOOT_FAILURE: 300.0}
"""Seconds for which a zone is avoided after its first answer of each kind; doubled by each further one."""

LONGEST_PAUSE = 1800.0
REMEMBERED = 3600.0
"""Seconds behind its pause in which a further answer of the same kind still counts as one in a row."""


def open_zones(spec: ProvisioningSpec, zones: Mapping[str, ZoneAnswer], now: float) -> list[str]:
    """The zones that may be asked, the preferred one first; "" stands for a provider without zones."""
    return [zone for zone in spec.zones or [""] if zone not in zones or zones[zone].until <= now]


def refusal(before: ZoneAnswer | None, kind: str, text: str, now: float) -> ZoneAnswer:
    """What is noted of a zone that has just refused."""
    times = before.times + 1 if before is not None and before.kind == kind else 1
    pause = min(PAUSES.get(kind, 60.0) * 2 ** min(times - 1, 16), LONGEST_PAUSE)
    return ZoneAnswer(kind=kind, text=text, at=now, until=now + pause, times=times)


def with_refusal(
    zones: Mapping[str, ZoneAnswer], zone: str, kind: str, text: str, asked_at: float, now: float
) -> Mapping[str, ZoneAnswer]:
    """The zones' answers with a refusal of what was asked at `asked_at`.

    Of all that had been asked for when a zone first refused only that one counts: it has no room, once.
    """
    before = zones.get(zone)
    return zones if before is not None and before.at >= asked_at else {**zones, zone: refusal(before, kind, text, now)}


def remembered(zones: Mapping[str, ZoneAnswer], granted: Sequence[str], now: float) -> dict[str, ZoneAnswer]:
    """The answers that still count: not of zones that gave a machine since, and not old ones."""
    return {zone: answer for zone, answer in zones.items() if zone not in granted and now <= answer.until + REMEMBERED}


def place_of(provider: str, zone: str) -> tuple[str, str]:
    """The zone and the region of which agents there tell; "" each of which they do not."""
    if provider == "local":
        return "", ""
    if provider == "cloud_run":
        return "", zone
    return zone, re.sub(r"-[a-z]$", "", zone)
