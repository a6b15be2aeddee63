"""Configurations: resources, devices, environments."""

from __future__ import annotations

from typing import assert_type

from fray.types import (
    ANY_REGION,
    ActorConfig,
    CpuConfig,
    DeviceConfig,
    DeviceKind,
    EnvironmentConfig,
    GpuConfig,
    GpuType,
    JobGroupConfig,
    Namespace,
    ResourceConfig,
    TpuConfig,
    TpuTopologyInfo,
    TpuType,
    create_environment,
    get_tpu_topology,
    tpu_family,
)


def resources() -> list[ResourceConfig]:
    by_hand = ResourceConfig(cpu=4, ram="8GB", disk=2**30, device=GpuConfig("H100", 8), regions=["us-central1"])
    assert_type(by_hand.scale(cpu=2, ram=0.5), ResourceConfig)
    assert_type(by_hand.chip_count(), int)
    assert_type(by_hand.device_flops("bf16"), float)
    assert_type(by_hand.total_flops(), float)
    ResourceConfig.with_cpu(zones="a")  # type: ignore[call-arg]
    tpu = ResourceConfig.with_tpu("v5litepod-16", slice_count=2, preemptible=False, zone="us-central1-a")
    either = ResourceConfig.with_tpu(["v5litepod-8", "v6e-8"])
    return [
        by_hand,
        tpu,
        either,
        ResourceConfig.with_cpu(cpu=0.5, memory="512MiB"),
        ResourceConfig.with_cpu(2, "4GB", disk="1GB"),
        ResourceConfig.with_gpu("A100", count=2, cpu=16, memory="64GB", preemptible=False),
    ]


def devices() -> list[DeviceConfig]:
    found: list[DeviceConfig] = [CpuConfig(), GpuConfig("H100", 8), TpuConfig("v5litepod-16")]
    for device in found:
        assert_type(device.chip_count(), int)
        assert_type(device.device_flops(), float)
        assert_type(device.default_env_vars(), dict[str, str])
        assert_type(device.kind, DeviceKind)
    return found


def topologies(tpu: TpuType, gpu: GpuType) -> tuple[str, int]:
    info = get_tpu_topology(tpu)
    assert_type(info, TpuTopologyInfo)
    return tpu_family(tpu), info.vm_count


def environments() -> None:
    positional = EnvironmentConfig(["tpu"], ["einops"], {"A": "1"})
    assert_type(positional.env_vars["A"], str)
    assert_type(EnvironmentConfig.create(env_vars={"A": "1"}), EnvironmentConfig)
    assert_type(create_environment(extras=["cpu"], secrets={"KEY": "secret"}), EnvironmentConfig)
    print(ActorConfig(max_concurrency=2), JobGroupConfig("group"), Namespace("lab"), ANY_REGION)
