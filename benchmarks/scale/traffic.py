"""Figures about requests by class and by prefix: mean and peak, compared with the service's limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from benchmarks.scale.services import SERVICES
from benchmarks.scale.storage import Storage
from fray_coordinator.store.metering import RequestCounts


def figures(storage: Storage, begin: float, end: float) -> dict[str, Any]:
    """Requests a second between two times; a peak is the busiest second."""
    seconds = max(end - begin, 1.0)
    groups: dict[str, Counter[int]] = {"all writes": Counter(), "all reads": Counter()}
    for (prefix, kind), counts in storage.asked.items():
        groups[f"{prefix} {kind}"] = counts
        groups["all writes" if kind in ("writes", "deletes") else "all reads"].update(counts)
    return {
        "requests_per_second": {
            name: {"mean": round(sum(counts.values()) / seconds, 1), "peak": max(counts.values(), default=0)}
            for name, counts in sorted(groups.items())
        },
        "peak_of_limit": _peaks_of_limits(storage),
        "busiest_second": {f"of {which}": _busiest(storage, which) for which in ("writes", "reads")},
        "served_at_first": storage.first_rates(),
        "served_at_last": {name: round(rate) for name, rate in storage.rates().items()},
        "throttled": {f"{prefix} {kind}": count for (prefix, kind), count in sorted(storage.throttled.items())},
        "declared_dead": len(storage.deaths),
    }


def _peaks_of_limits(storage: Storage) -> dict[str, float]:
    """The busiest second under each of the service's limits, divided by what was served at first; bursts exceed 1."""
    asked: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for (prefix, kind), counts in storage.asked.items():
        asked[storage.limited_as(prefix, kind)].update(counts)
    first = storage.first_rates()
    return {
        f"{whose} {which}": round(max(counts.values()) / first[which], 3)
        for (whose, which), counts in sorted(asked.items())
    }


def _busiest(storage: Storage, which: str) -> dict[str, int]:
    """The kinds of objects in the busiest second of one class, the most frequent first."""
    seconds = (aims for (_, limit), aims in storage.aims.items() if limit == which)
    return dict(max(seconds, key=Counter.total, default=Counter[str]()).most_common())


def served(storage: Storage) -> Counter[tuple[str, str]]:
    """Requests that were served, by prefix and class."""
    return Counter({of: sum(counts.values()) - storage.throttled[of] for of, counts in storage.asked.items()})


def totals(storage: Storage, times: float) -> dict[str, float]:
    """Requests that were served, by class, divided by `times`."""
    by_class: Counter[str] = Counter()
    for (_, kind), count in served(storage).items():
        by_class[kind] += count
    return {kind: round(count / times, 2) for kind, count in sorted(by_class.items())}


def dollars(storage: Storage, times: float) -> dict[str, float]:
    """The cost of the served requests at each service, multiplied by `times`."""
    asked = totals(storage, 1.0)
    usage = RequestCounts(**{kind: int(asked.get(kind, 0)) for kind in ("writes", "lists", "reads", "deletes")})
    return {name: round(usage.cost(service.prices) * times, 4) for name, service in SERVICES.items()}
