"""Jobs on a private cluster: what this machine lacks is refused, or said."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from fray.cluster import current, private_spec
from fray.cluster.placing import parts_of
from fray.cluster.private_spec import private_spec_of, unmet_demands
from fray.errors import InvalidInput
from fray.types import (
    Entrypoint,
    EnvironmentConfig,
    GpuConfig,
    JobRequest,
    ReservationConfig,
    ResourceConfig,
)
from fray_layouts.records import Resources
from fray_layouts.spec import EnvironmentSpec, ResourceSpec

LAPTOP = Resources(cpu=8000, memory=16 * 10**9, disk=10**12)
WORKSTATION = Resources(cpu=8000, memory=16 * 10**9, disk=10**12, device="gpu-rtx4090", device_count=1)


def a_request(**fields: Any) -> JobRequest:
    return JobRequest(**{"name": "job", "entrypoint": Entrypoint.from_binary("true"), **fields})


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is a laptop without devices."""
    on_machine(monkeypatch, LAPTOP)


def on_machine(monkeypatch: pytest.MonkeyPatch, has: Resources) -> None:
    plain = Resources(cpu=has.cpu, memory=has.memory, disk=has.disk)
    monkeypatch.setattr(private_spec, "discover", lambda: has)
    monkeypatch.setattr(private_spec, "discover_without_devices", lambda: plain)
    private_spec._machine.cache_clear()
    private_spec._say_once.cache_clear()


@pytest.mark.parametrize(
    ("fields", "lack"),
    [
        ({"resources": ResourceConfig.with_gpu("h100", 8)}, "gpu-h100: 8 wanted, none here"),
        ({"resources": ResourceConfig(device=GpuConfig("auto", 0.5))}, "gpu: 0.5 wanted, none here"),
        ({"resources": ResourceConfig.with_tpu("v5litepod-4")}, "tpu-v5litepod-4: 4 wanted, none here"),
        ({"resources": ResourceConfig(cpu=512)}, "cpu: 512 cores wanted, 8 here"),
        ({"resources": ResourceConfig(ram="900GB")}, "memory: 900 GB wanted, 16 here"),
        ({"resources": ResourceConfig(disk="2TB")}, "disk: 2000 GB wanted, 1000 here"),
        ({"resources": ResourceConfig(regions=["eu"])}, "region: eu wanted, none named here"),
        ({"resources": ResourceConfig(zone="eu-1")}, "zone: eu-1 wanted, none named here"),
        ({"resources": ResourceConfig(labels={"rack": "4"})}, "label rack: 4 wanted, none here"),
        ({"environment": EnvironmentConfig(docker_image="debian")}, "podman or docker"),
        ({"pool": "big"}, "pool: big wanted, none here"),
        ({"replicas": 3, "spread": True}, "spread: 3 hosts wanted, 1 here"),
    ],
)
def test_what_this_machine_lacks_is_refused_or_simulated(
    fields: dict[str, Any], lack: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = a_request(**fields)
    with pytest.raises(InvalidInput, match=r"simulate=True") as caught:
        private_spec_of(request, "real")
    assert lack in str(caught.value)
    with caplog.at_level(logging.WARNING, "fray"):
        specs = [private_spec_of(request, "simulated") for _ in range(2)]
    (said,) = caplog.messages
    assert said.startswith("simulated on this machine: ")
    assert lack in said
    for spec in specs:
        assert unmet_demands(spec) == []


def test_all_lacks_are_told_at_once() -> None:
    resources = ResourceConfig(cpu=64, ram="900g", device=GpuConfig("h100", 8), regions=["eu"])
    with pytest.raises(InvalidInput) as caught:
        private_spec_of(a_request(resources=resources, pool="big"), "real")
    for word in ("gpu-h100", "cpu: 64", "memory: 900", "region: eu", "pool: big"):
        assert word in str(caught.value)


def test_what_this_machine_has_is_accepted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    on_machine(monkeypatch, WORKSTATION)
    for resources in (
        ResourceConfig(),
        ResourceConfig(cpu=8, ram="16GB", disk="1TB"),
        ResourceConfig.with_gpu("rtx4090", 1),
        ResourceConfig(device=GpuConfig("auto", 1)),
    ):
        private_spec_of(a_request(resources=resources), "real")
    assert caplog.text == ""
    with pytest.raises(InvalidInput, match="2 wanted, 1 here"):
        private_spec_of(a_request(resources=ResourceConfig.with_gpu("rtx4090", 2)), "real")


def test_a_full_disk_refuses_nobody_who_asked_for_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine(monkeypatch, Resources(cpu=8000, memory=10**8, disk=10**6))
    assert private_spec_of(a_request(), "real").resources == ResourceSpec(cpu=1)


def test_a_gang_keeps_its_replicas_and_takes_no_core() -> None:
    spec = private_spec_of(a_request(resources=ResourceConfig.with_tpu("v5litepod-16", slice_count=2)), "simulated")
    assert (spec.replicas, spec.slices) == (8, 0)
    assert spec.resources == ResourceSpec(cpu=0)
    assert private_spec_of(a_request(resources=ResourceConfig(cpu=4)), "real").resources == ResourceSpec(cpu=1)


def test_packages_that_are_not_installed_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    environment = EnvironmentConfig(
        extras=["tpu"], groups=["dev"], pip_packages=["x>=1"], env_vars={"A": "1"}, workspace="."
    )
    with caplog.at_level(logging.WARNING, "fray"):
        specs = [private_spec_of(a_request(environment=environment), "real") for _ in range(2)]
    assert [spec.environment for spec in specs] == [EnvironmentSpec(env_vars={"A": "1"})] * 2
    (said,) = caplog.messages
    assert said.startswith("not installed: tpu, dev, x>=1")


def test_fields_of_a_later_release_are_dropped_only_by_a_simulation() -> None:
    request = a_request(resources=ResourceConfig(container_profile="gvisor"))
    with pytest.raises(InvalidInput, match="container_profile"):
        private_spec_of(request, "real")
    assert private_spec_of(request, "simulated") == private_spec_of(a_request(), "simulated")


def test_a_reservation_is_refused_like_a_job() -> None:
    config = ReservationConfig(ResourceConfig.with_tpu("v5litepod-16"))
    with pytest.raises(InvalidInput, match="tpu-v5litepod-16: 4 wanted, none here"):
        parts_of(config, "real")
    ((part,), low) = parts_of(config, "simulated")
    assert part.gang is not None
    assert (part.gang.count, low) == (1, 1)
    parts_of(replace(config, min_resources=ResourceConfig(cpu=2)), "real")


@pytest.mark.parametrize("name", ["FRAY_CLUSTER_SPECS", "FRAY_CLUSTER", "FRAY_CLUTSER_SPEC", "fray_cluster_spec"])
def test_a_variable_that_looks_like_a_misspelling_is_named(name: str) -> None:
    assert f"({name} is set, which Fray does not read)" in current.why_private({"HOME": "/", name: "gs://b"})


def test_other_variables_are_no_misspelling() -> None:
    told = current.why_private({"FRAY_NAMESPACE": "mine", "FRAY_CLUSTER_SPEC": "", "CLUSTER_NAME": "x", "SPEC": "y"})
    assert told.startswith("FRAY_CLUSTER_SPEC is not set: ")


@pytest.mark.parametrize(
    ("root", "processes", "simulates"),
    [
        ("local", True, False),
        ("local?use_isolated_env=False", False, False),
        ("local?simulate=True", True, True),
        ("local?use_isolated_env=False&simulate=True", False, True),
    ],
)
def test_options_of_the_root_of_a_private_cluster(root: str, processes: bool, simulates: bool) -> None:
    assert current.private_options(root) == {"use_isolated_env": processes, "simulate": simulates}


@pytest.mark.parametrize("root", ["local?simulate", "local?simulate=yes", "local?simulte=True"])
def test_other_options_are_refused(root: str) -> None:
    with pytest.raises(InvalidInput, match=r"local\?simulate=True"):
        current.private_options(root)
