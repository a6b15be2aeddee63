"""GCS and S3 as the simulation sees them: latencies, rates, prices.

Rates and prices are documented; so are the medians and 99th percentiles of a conditional read that finds nothing new.
The other latencies are assumptions of the usual size (`docs/scale.md`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from fray_coordinator.store.metering import GCS_PRICES as GCS_PRICES, S3_PRICES as S3_PRICES, Prices

_Z99 = 2.326
"""The 99th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Log-normal; median and 99th percentile in seconds."""

    p50: float
    p99: float

    def draw(self, rng: random.Random) -> float:
        return self.p50 * math.exp(rng.gauss(0.0, math.log(self.p99 / self.p50) / _Z99))


@dataclass(frozen=True, slots=True)
class Service:
    """One storage service.

    Attributes:
        latencies: by verb: "get", "unchanged" (a conditional read that finds nothing new), "put", "delete", "list".
        writes, reads: requests a second that it accepts at first; deletes count as writes, lists as reads.
        doubling: seconds of load after which it accepts twice as much; infinite if no such time is documented.
        by_prefix: whether the rates hold for each top-level prefix by itself, not for the bucket.
        one_name: whether it limits the writes of one name to one a second.
    """

    name: str
    latencies: Mapping[str, Latency]
    writes: float
    reads: float
    doubling: float
    by_prefix: bool
    one_name: bool
    prices: Prices


GCS = Service(
    name="gcs",
    latencies={
        "unchanged": Latency(0.011, 0.026),
        "get": Latency(0.020, 0.080),
        "put": Latency(0.045, 0.200),
        "delete": Latency(0.030, 0.120),
        "list": Latency(0.070, 0.250),
    },
    writes=1000.0,
    reads=5000.0,
    doubling=1200.0,
    by_prefix=False,
    one_name=True,
    prices=GCS_PRICES,
)

S3 = Service(
    name="s3",
    latencies={
        "unchanged": Latency(0.009, 0.030),
        "get": Latency(0.015, 0.070),
        "put": Latency(0.025, 0.120),
        "delete": Latency(0.020, 0.100),
        "list": Latency(0.050, 0.200),
    },
    writes=3500.0,
    reads=5500.0,
    doubling=math.inf,
    by_prefix=True,
    one_name=False,
    prices=S3_PRICES,
)

SERVICES = {service.name: service for service in (GCS, S3)}
