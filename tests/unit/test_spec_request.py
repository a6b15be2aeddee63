"""Specs from requests: an error names the field, the value and the remedy."""

from __future__ import annotations

import base64
import pickle
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from fray.actor.create import actor_request
from fray.cluster import StorageCluster
from fray.errors import InvalidInput
from fray.job_spec import to_spec
from fray.pool import WorkerPool
from fray.types import (
    ANY_REGION,
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
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import all_jobs
from fray_layouts.records import JobRecord
from fray_layouts.spec import DeviceSpec, JobSpec
from tests.support.waiting import wait_until

LOCK = threading.Lock()


def a_request(**fields: Any) -> JobRequest:
    return JobRequest(**{"name": "job", "entrypoint": Entrypoint.from_binary("true"), **fields})


def test_every_field_reaches_the_spec() -> None:
    spec = to_spec(
        JobRequest(
            name="train",
            entrypoint=Entrypoint.from_binary("python", ["train.py", "--fast"]),
            resources=ResourceConfig(cpu=2.5, ram="1GiB", disk="2g", device=GpuConfig("h100", 8), preemptible=False),
            environment=EnvironmentConfig(["tpu"], ["numpy"], {"A": "1"}, None, "team/train:7", {"B": "2"}, ["dev"]),
            max_retries_failure=3,
            max_retries_preemption=4,
            timeout="5s",
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
            log_limit="20MB",
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
    assert spec.environment.groups == ["dev"]
    packages = (spec.environment.extras, spec.environment.pip_packages, spec.environment.docker_image)
    assert packages == (["tpu"], ["numpy"], "team/train:7")
    plain = ("max_retries_failure", "max_retries_preemption", "timeout", "pending_timeout", "grace", "priority")
    assert [getattr(spec, name) for name in plain] == [3, 4, 5.0, 6.0, 7.0, 8]
    named = ("name", "namespace", "parent", "detached", "pool", "id")
    assert [getattr(spec, name) for name in named] == ["train", "space", "parent-1", True, "fast", "mine"]
    assert spec.health_check is not None
    assert (spec.health_check.port, spec.health_check.path) == (80, "/up")
    assert (spec.ports, spec.outputs, spec.log_limit) == (["http"], ["checkpoints/**"], 20 * 10**6)


def test_an_omitted_field_has_the_specs_own_default() -> None:
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


def test_the_job_of_an_actor_is_known_by_the_actors_class() -> None:
    call = to_spec(actor_request(threading.Thread, (), {}, "it")).entrypoint.callable
    assert call is not None
    assert call.name == "actor threading.Thread"


@pytest.mark.parametrize("transport", ["direct", "queue"])
def test_the_job_of_a_worker_is_known_by_its_pool(tmp_path: Path, transport: Literal["direct", "queue"]) -> None:
    with StorageCluster(str(tmp_path)) as cluster:
        with WorkerPool(cluster, 1, name_prefix="sums", transport=transport) as pool:
            pool.submit(sum, [1])
            jobs = wait_until(lambda: [job for job in cluster.run(all_of_them) if job.spec.name.startswith("sums")])
            pool.shutdown(wait=False)
    call = jobs[0].spec.entrypoint.callable
    assert call is not None
    assert call.name.startswith("worker of pool sums-")


def all_of_them(core: Core) -> Coroutine[Any, Any, list[JobRecord]]:
    return all_jobs(core, {})


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
def test_values_that_cannot_be_pickled_are_named(entrypoint: Entrypoint, field: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be pickled") as caught:
        to_spec(a_request(entrypoint=entrypoint))
    assert caught.value.field == field


def test_a_call_that_is_slow_to_store_is_told_of_once_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    to_spec(JobRequest("small", Entrypoint.from_callable(len, args=(bytes(1_000_000),))))
    assert caplog.messages == []
    to_spec(JobRequest("large", Entrypoint.from_callable(len, args=(bytes(25_000_000),))))
    (told,) = caplog.messages
    assert told.startswith("the call of builtins.len has 25 MB with its arguments")
    assert told.endswith("write large data to storage once, and pass its path")


def test_a_function_of_a_script_may_not_use_unpicklable_objects(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({"resources": ResourceConfig(regions="eu")}, "resources.regions: 'eu' .*list of strings"),
        ({"resources": ResourceConfig(regions=["a/b"])}, "resources.regions"),
        ({"resources": ResourceConfig(zone="a/b")}, "resources.zone: 'a/b'"),
        ({"resources": ResourceConfig(labels={"rack": 4})}, "resources.labels"),  # type: ignore[dict-item]
        ({"resources": ResourceConfig(target_cluster="other")}, "resources.target_cluster: .*root"),
        (
            {"resources": ResourceConfig.with_tpu(["v6e-4", "v4-8"]), "actor": True},
            "resources.device_alternatives: .*an actor is for one device",
        ),
        ({"resources": ResourceConfig(device_alternatives=["v4"])}, "resources.device_alternatives: .*name a device"),
        (
            {"resources": ResourceConfig(device=TpuConfig("v6e-4"), device_alternatives=["v6e-8"])},
            "tpu_type: .*v6e-8.*all types must have the same number of machines",
        ),
        ({"resources": ResourceConfig(image="debian")}, "resources.image"),
        (
            {"resources": ResourceConfig(container_profile="gvisor")},
            "resources.container_profile: 'gvisor' .*containers",
        ),
        ({"max_task_failures": 1}, "max_task_failures: 1 .*max_retries_failure"),
        ({"processes_per_task": 2}, "processes_per_task: 2 "),
        ({"resources": ResourceConfig(device=TpuConfig("v4-8", topology="2x2x1"))}, "resources.device.topology"),
        ({"resources": ResourceConfig(device=TpuConfig("v5litepod-17"))}, "tpu_type: 'v5litepod-17' .*v5litepod-16"),
        (
            {"resources": ResourceConfig(device=TpuConfig("v9-16"))},
            "tpu_type: 'v9-16' .*there are v4-16, v5p-16, v5litepod-16, v6e-16 and others",
        ),
        ({"replicas": 0}, "replicas: 0 .*at least 1"),
        ({"replicas": -1}, "replicas: -1 .*at least 1"),
        ({"replicas": 10**6}, "replicas: 1000000 .*at most 10000"),
        ({"replicas": "2"}, "replicas: '2' "),
        ({"replicas": "2", "resources": ResourceConfig.with_tpu("v5litepod-4")}, "replicas: '2' "),
        ({"replicas": 2, "actor": True}, "replicas: 2 .*group of actors"),
        ({"replicas": 2, "same": "rack"}, "same: 'rack' .*zone"),
        ({"outage": "wait"}, "outage: 'wait' .*run, stop"),
        ({"replicas": 2, "outage": "run"}, "outage: 'run' .*a gang ends with the trust of each of its agents"),
        (
            {"replicas": 6, "resources": ResourceConfig(device=TpuConfig("v5litepod-16"))},
            "replicas: 6 .*a slice of v5litepod-16 has 4 virtual machines.*multiple of 4",
        ),
        ({"resources": ResourceConfig(device=TpuConfig("v6e-8", count=2))}, "resources.device.count: 2 .*8 chips"),
        ({"resources": ResourceConfig(GpuConfig("h100"), 2)}, "resources.cpu: .*device="),  # type: ignore[arg-type]
        ({"resources": {"cpu": 1}}, "resources: .*ResourceConfig"),
        ({"replicas": 3, "resources": ResourceConfig(replicas=2)}, "replicas: 3 .*resources.replicas is 2"),
        (
            {"replicas": 3, "resources": ResourceConfig.with_tpu("v5litepod-4", slice_count=2)},
            "replicas: 3 .*resources.replicas is 2 .*with_tpu sets it to the number of virtual machines.*leave one",
        ),
        ({"environment": {"env_vars": {"PASSWORD": "hunter2"}}}, "environment: '...' .*EnvironmentConfig"),
        ({"environment": EnvironmentConfig(pip_packages=[1])}, "environment.pip_packages"),  # type: ignore[list-item]
        ({"priority": 1000}, "priority: 1000 "),
        ({"timeout": 0}, "timeout: 0"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        to_spec(a_request(**fields))


@pytest.mark.parametrize(
    ("device", "count"),
    [
        (TpuConfig("v5litepod-4"), 4),
        (TpuConfig("v6e-8", count=1), 8),
        (GpuConfig("h100", 2), 2),
        (GpuConfig("h100", 0.5), 0.5),
    ],
)
def test_a_job_has_the_chips_that_its_slice_has_on_its_host(device: DeviceConfig, count: int) -> None:
    asked = to_spec(a_request(resources=ResourceConfig(device=device))).resources.device
    assert asked is not None
    assert (asked.variant, asked.count) == (device.variant, count)


@pytest.mark.parametrize(
    ("fields", "replicas", "slices"),
    [
        ({}, 1, 0),
        ({"replicas": 3}, 3, 0),
        ({"resources": ResourceConfig(replicas=3)}, 3, 0),
        ({"resources": ResourceConfig(count=3), "replicas": 3}, 3, 0),
        ({"resources": ResourceConfig.with_tpu("v5litepod-4")}, 1, 1),
        ({"resources": ResourceConfig.with_tpu("v5litepod-4"), "replicas": 2}, 2, 2),
        ({"resources": ResourceConfig.with_tpu("v5litepod-16")}, 4, 1),
        ({"resources": ResourceConfig.with_tpu("v5litepod-16", slice_count=3)}, 12, 3),
        ({"resources": ResourceConfig(device=TpuConfig("v5p-16"))}, 2, 1),
        ({"resources": ResourceConfig(device=TpuConfig("v5p-16")), "replicas": 6}, 6, 3),
    ],
)
def test_a_gang_has_a_process_on_each_host_of_its_slices(fields: dict[str, Any], replicas: int, slices: int) -> None:
    spec = to_spec(a_request(**fields))
    assert (spec.replicas, spec.slices) == (replicas, slices)


def test_requirements_on_a_jobs_place_reach_the_spec() -> None:
    resources = ResourceConfig.with_tpu(
        ["v5litepod-16", "v6e-16"], regions=["eu", "us"], zone="eu-1", labels={"rack": "4"}, preemptible=False
    )
    spec = to_spec(a_request(resources=resources, spread=True, same="zone"))
    assert (spec.spread, spec.same) == (True, "zone")
    asked = spec.resources
    assert (asked.regions, asked.zone, asked.labels, asked.preemptible) == (["eu", "us"], "eu-1", {"rack": "4"}, False)
    assert asked.device == DeviceSpec(kind="tpu", variant="v5litepod-16", count=4)
    assert asked.device_alternatives == ["v6e-16"]


def test_any_region_is_no_region() -> None:
    assert to_spec(a_request(resources=ResourceConfig(regions=["eu", ANY_REGION]))).resources.regions == []


def test_a_worker_of_a_pool_is_no_gang() -> None:
    cluster = StorageCluster("memory://nowhere")
    with pytest.raises(InvalidInput, match=r"resources.replicas: 4 .*a worker is one process"):
        WorkerPool(cluster, resources=ResourceConfig.with_tpu("v5litepod-16"))
    with pytest.raises(InvalidInput, match=r"resources.replicas: 2 .*a worker is one process"):
        WorkerPool.attach("name", cluster, resources=ResourceConfig(replicas=2))
