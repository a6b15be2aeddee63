"""The hourly prices of machines."""

from __future__ import annotations

import pytest

from fray_agents.provisioning.prices import hourly_cost, similar_zone, unpriced
from fray_layouts.records import CloudRunSettings, ProvisioningSpec, Resources
from fray_layouts.topology import TPU_TOPOLOGIES, tpu_family


def tpu(machine_type: str, zone: str, spot: bool = False, hourly_cost: float | None = None) -> ProvisioningSpec:
    return ProvisioningSpec(provider="tpu", machine_type=machine_type, zones=[zone], spot=spot, hourly_cost=hourly_cost)


def cloud_run(region: str, capacity: Resources | None = None) -> ProvisioningSpec:
    return ProvisioningSpec(
        provider="cloud_run", zones=[region], cloud_run=CloudRunSettings(image="i"), capacity=capacity
    )


@pytest.mark.parametrize(
    ("spec", "dollars"),
    [
        (tpu("v5litepod-16", "us-east5-a"), 16 * 1.20),
        (tpu("v5litepod-16", "us-east5-a", spot=True), 16 * 0.60),
        (tpu("v4-8", "us-central2-b"), 4 * 3.22),
        (tpu("v6e-8", "europe-west4-a"), 8 * 2.97),
        (tpu("v6e-8", "southamerica-west1-a", spot=True), None),
        (tpu("v6e-8", "mars-north1-a"), None),
        (tpu("v6e-8", "mars-north1-a", hourly_cost=7.0), 7.0),
        (cloud_run("us-central1"), 0.0648 + 0.0072 / 2),
        (cloud_run("us-west2", Resources(cpu=4000, memory=8 * 2**30)), 4 * 0.07776 + 8 * 0.00864),
        (cloud_run("mars-north1"), None),
        (ProvisioningSpec(provider="local"), 0.0),
        (ProvisioningSpec(provider="command"), None),
        (ProvisioningSpec(provider="command", hourly_cost=2.5), 2.5),
    ],
)
def test_a_machine_has_the_price_of_its_pool_or_of_the_list(spec: ProvisioningSpec, dollars: float | None) -> None:
    [zone] = spec.zones or [""]
    assert hourly_cost(spec, zone) == (None if dollars is None else pytest.approx(dollars))
    assert unpriced(spec) == ([zone] if dollars is None else [])


def test_every_family_of_tpus_has_prices_and_spot_is_never_dearer() -> None:
    for name in TPU_TOPOLOGIES:
        zone = "us-central2-b" if tpu_family(name) == "v4" else "us-east5-a"
        usual, spot = hourly_cost(tpu(name, zone), zone), hourly_cost(tpu(name, zone, spot=True), zone)
        assert usual is not None
        assert spot is not None
        assert 0 < spot < usual


def test_a_misspelled_zone_has_no_price_and_one_that_is_alike() -> None:
    assert similar_zone(tpu("v6e-8", "us-esat5-a"), "us-esat5-a") == "us-east5-a"
    assert similar_zone(tpu("v6e-8", "mars-north1-a"), "mars-north1-a") == ""
    assert similar_zone(cloud_run("us-centrall"), "us-centrall") == "us-central1"
