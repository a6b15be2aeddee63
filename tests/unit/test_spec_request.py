"""From requests to specs: what is refused names field, value and remedy."""

from __future__ import annotations

import base64
import pickle
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fray.errors import InvalidInput
from fray.job_spec import to_spec
from fray.types import (
    BinaryEntrypoint,
    DeviceConfig,
    Entrypoint,
    EnvironmentConfig,
    GpuConfig,
    HealthCheck,
    JobRequest,
    ResourceConfig,
    TpuConfig,
)
from fray_layouts.spec import DeviceSpec, JobSpec

LOCK = threading.Lock()


def a_request(**fields: Any) -> JobRequest:
    return JobRequest(**{"name": "job", "entrypoint": Entrypoint.from_binary("true"), **fields})


def test_every_field_reaches_the_spec() -> None:
    spec = to_spec(
        JobRequest(
            name="train",
            entrypoint=Entrypoint.from_binary("python", ["train.py", "--fast"]),
            resources=ResourceConfig(cpu=2.5, ram="1GiB", disk="2g", device=GpuConfig("h100", 8), preemptible=False),
            environment=EnvironmentConfig(["tpu"], ["numpy"], {"A": "1"}, None, "team/train:7", {"B": "2"}),
            max_retries_failure=3,
            max_retries_preemption=4,
            timeout=5.0,
            pending_timeout=6.0,
            grace=7.0,
            priority=8,
            namespace="space",
            parent="parent-1",
            detached=True,
            pool="fast",
            id="mine",
            health_check=HealthCheck(port=80, path="/up"),
            ports=("http",),
            outputs=("checkpoints/**",),
        )
    )
    assert spec.entrypoint.command == ["python", "train.py", "--fast"]
    assert (spec.resources.cpu, spec.resources.memory, spec.resources.disk) == (2.5, 2**30, 2 * 10**9)
    assert spec.resources.device is not None
    assert (spec.resources.device.kind, spec.resources.device.variant, spec.resources.device.count) == (
        "gpu",
        "h100",
        8,
    )
    assert not spec.resources.preemptible
    assert (spec.environment.env_vars, spec.environment.secret_env_vars) == ({"A": "1"}, {"B": "2"})
    packages = (spec.environment.extras, spec.environment.pip_packages, spec.environment.docker_image)
    assert packages == (["tpu"], ["numpy"], "team/train:7")
    plain = ("max_retries_failure", "max_retries_preemption", "timeout", "pending_timeout", "grace", "priority")
    assert [getattr(spec, name) for name in plain] == [3, 4, 5.0, 6.0, 7.0, 8]
    named = ("name", "namespace", "parent", "detached", "pool", "id")
    assert [getattr(spec, name) for name in named] == ["train", "space", "parent-1", True, "fast", "mine"]
    assert spec.health_check is not None
    assert (spec.health_check.port, spec.health_check.path) == (80, "/up")
    assert (spec.ports, spec.outputs) == (["http"], ["checkpoints/**"])


def test_what_is_not_said_is_the_spec_s_own_default() -> None:
    spec = to_spec(a_request(resources=ResourceConfig(ram=0, disk=0)))
    assert spec == JobSpec(name="job", entrypoint=spec.entrypoint)


def test_any_gpu_has_no_variant() -> None:
    spec = to_spec(a_request(resources=ResourceConfig.with_gpu(count=2)))
    assert spec.resources.device == DeviceSpec(kind="gpu", count=2)


@pytest.mark.parametrize(
    ("function", "name"),
    [(dict, "builtins.dict"), (base64.b64encode, "base64.b64encode"), (partial(print), "functools.partial")],
)
def test_a_callable_is_known_by_its_name(function: Callable[..., Any], name: str) -> None:
    call = to_spec(JobRequest("job", Entrypoint.from_callable(function))).entrypoint.callable
    assert call is not None
    assert call.name == name


def test_a_plain_callable_is_an_entrypoint() -> None:
    call = to_spec(JobRequest("job", dict)).entrypoint.callable
    assert call is not None
    assert pickle.loads(base64.b64decode(call.pickle)) == (dict, (), {})
    assert call.python == f"{sys.version_info.major}.{sys.version_info.minor}"


def uses_a_lock() -> bool:
    return LOCK.locked()


def makes_a_closure() -> Any:
    inner = threading.Lock()
    return lambda: inner.locked()


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay here")


@pytest.mark.parametrize(
    ("entrypoint", "field"),
    [
        (Entrypoint.from_callable(print, [1, LOCK]), "entrypoint.args[1]"),
        (Entrypoint.from_callable(print, kwargs={"file": LOCK}), "entrypoint.kwargs['file']"),
        (Entrypoint.from_callable(makes_a_closure()), "entrypoint.callable, which uses 'inner'"),
        (Entrypoint.from_callable(print, [Refuses()]), "entrypoint.args[0]"),
    ],
)
def test_what_cannot_be_pickled_is_named(entrypoint: Entrypoint, field: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be pickled") as caught:
        to_spec(a_request(entrypoint=entrypoint))
    assert caught.value.field == field


def test_a_function_of_a_script_may_not_use_what_cannot_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses_a_lock, "__module__", "__main__")  # so it is pickled with the globals that it uses
    with pytest.raises(InvalidInput, match="which uses 'LOCK'"):
        to_spec(a_request(entrypoint=uses_a_lock))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"entrypoint": 5}, "entrypoint: 5 .*from_callable"),
        ({"entrypoint": BinaryEntrypoint("")}, "entrypoint.command"),
        ({"name": "a/b"}, "name: 'a/b'"),
        ({"name": "x" * 10_000}, "name: .*10000 characters"),
        ({"resources": ResourceConfig(cpu=-1)}, r"resources.cpu: -1 .*at least 0"),
        ({"resources": ResourceConfig(ram="lots")}, "resources.memory: 'lots' .*512MiB"),
        ({"resources": ResourceConfig(regions=["eu"])}, "resources.regions: .*pool"),
        ({"resources": ResourceConfig(zone="eu-1")}, "resources.zone: .*pool"),
        ({"resources": ResourceConfig(target_cluster="other")}, "resources.target_cluster: .*root"),
        ({"resources": ResourceConfig(device_alternatives=["v4"])}, "resources.device_alternatives"),
        ({"resources": ResourceConfig(image="debian")}, "resources.image"),
        (
            {"resources": ResourceConfig(container_profile="gvisor")},
            "resources.container_profile: 'gvisor' .*containers",
        ),
        ({"max_task_failures": 1}, "max_task_failures: 1 .*max_retries_failure"),
        ({"processes_per_task": 2}, "processes_per_task: 2 "),
        ({"resources": ResourceConfig(device=TpuConfig("v4-8", topology="2x2x1"))}, "resources.device.topology"),
        ({"resources": ResourceConfig.with_tpu("v4-8", slice_count=2)}, "replicas: 2 "),
        ({"resources": ResourceConfig.with_tpu("v5litepod-16")}, "resources.device.variant: .*4 hosts"),
        ({"resources": ResourceConfig(device=TpuConfig("v5p-16"))}, "resources.device.variant: .*2 hosts"),
        ({"resources": ResourceConfig(device=TpuConfig("v6e-8", count=2))}, "resources.device.count: 2 .*8 chips"),
        ({"resources": ResourceConfig(GpuConfig("h100"), 2)}, "resources.cpu: .*device="),  # type: ignore[arg-type]
        ({"resources": {"cpu": 1}}, "resources: .*ResourceConfig"),
        ({"replicas": 3}, "replicas: 3 "),
        ({"replicas": 3, "resources": ResourceConfig(replicas=2)}, "replicas: 3 .*resources.replicas says 2"),
        (
            {"replicas": 3, "resources": ResourceConfig.with_tpu("v5litepod-4", slice_count=2)},
            "replicas: 3 .*resources.replicas says 2 .*with_tpu counts the virtual machines.*leave one",
        ),
        ({"environment": {"env_vars": {"PASSWORD": "hunter2"}}}, "environment: '...' .*EnvironmentConfig"),
        ({"environment": EnvironmentConfig(pip_packages=[1])}, "environment.pip_packages"),  # type: ignore[list-item]
        ({"priority": 1000}, "priority: 1000 "),
        ({"timeout": 0}, "timeout: 0"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        to_spec(a_request(**fields))


@pytest.mark.parametrize(
    ("device", "count"),
    [
        (TpuConfig("v5litepod-4"), 4),
        (TpuConfig("v6e-8", count=1), 8),
        (TpuConfig("v9-16"), 1),
        (GpuConfig("h100", 2), 2),
        (GpuConfig("h100", 0.5), 0.5),
    ],
)
def test_a_job_has_the_chips_that_its_slice_has_on_its_host(device: DeviceConfig, count: int) -> None:
    asked = to_spec(a_request(resources=ResourceConfig(device=device))).resources.device
    assert asked is not None
    assert (asked.variant, asked.count) == (device.variant, count)
