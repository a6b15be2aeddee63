"""Public types: both spellings of the documents, and values that compare and pickle."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fray
from fray.client import JobAlreadyExists
from fray.device_flops import device_flops, device_flops_for_jax_device
from fray.errors import InvalidInput, JobFailed
from fray.types import (
    CpuConfig,
    Entrypoint,
    EnvironmentConfig,
    GpuConfig,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    Namespace,
    ResourceConfig,
    TpuConfig,
    create_environment,
)
from fray_layouts.records import AttemptExit


def test_ram_and_memory_are_the_same_thing() -> None:
    assert ResourceConfig(memory="8g") == ResourceConfig(ram="8g") == ResourceConfig.with_cpu(memory="8g")
    assert ResourceConfig(ram="8g").memory == "8g"
    with pytest.raises(InvalidInput, match=r"resources\.ram"):
        ResourceConfig(ram="8g", memory="8g")


def test_both_spellings_of_devices_replicas_and_sizes() -> None:
    assert (
        TpuConfig(tpu_type="v5litepod-16") == TpuConfig("v5litepod-16") == TpuConfig(kind="tpu", variant="v5litepod-16")
    )
    assert GpuConfig(gpu_type="a100", count=2) == GpuConfig("a100", 2)
    assert ResourceConfig(ram="8g", disk="16g", cpu=1, count=128).replicas == 128
    assert ResourceConfig.with_cpu(4, "8GB") == ResourceConfig(cpu=4, ram="8GB")
    assert ResourceConfig.with_gpu("a100", 2, 4, "8GB") == ResourceConfig.with_gpu("a100", count=2, memory="8GB")
    assert ResourceConfig.with_gpu("a100").ram == "16GB"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: TpuConfig("v6e-4", tpu_type="v6e-4"), "device.variant"),
        (lambda: TpuConfig(), "device.variant"),
        (lambda: GpuConfig("h100", gpu_type="h100"), "device.variant"),
        (lambda: ResourceConfig(replicas=2, count=2), "resources.replicas"),
    ],
)
def test_a_field_is_spelled_in_one_way_at_a_time(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        make()


def test_entrypoint_and_resources_may_change_places() -> None:
    entrypoint, resources = Entrypoint.from_callable(len, ("a",)), ResourceConfig(cpu=2)
    request = JobRequest("job", entrypoint, resources, EnvironmentConfig(env_vars={"A": "1"}))
    assert JobRequest("job", resources, entrypoint, EnvironmentConfig(env_vars={"A": "1"})) == request  # type: ignore[arg-type]


def test_an_entrypoint_can_be_made_of_the_class_itself() -> None:
    assert Entrypoint(callable=len, args=("a",)) == Entrypoint.from_callable(len, ("a",))
    assert pickle.loads(pickle.dumps(Entrypoint(callable=len))) == Entrypoint.from_callable(len)


def test_an_entrypoint_must_be_callable() -> None:
    with pytest.raises(InvalidInput, match=r"entrypoint\.callable: 3"):
        Entrypoint.from_callable(3)  # type: ignore[arg-type]


def test_the_defaults_are_those_of_the_documents() -> None:
    config = ResourceConfig()
    assert (config.cpu, config.ram, config.disk, config.preemptible) == (1, "128m", "1g", True)
    assert config.device == CpuConfig()
    assert config.replicas == 1


def test_short_forms_of_accelerators() -> None:
    gpu = ResourceConfig.with_gpu("h100", 8, memory="64GB")
    assert (gpu.device, gpu.cpu, gpu.ram) == (GpuConfig("h100", 8), 4, "64GB")
    assert ResourceConfig.with_gpu("h100").ram == "16GB"
    tpu = ResourceConfig.with_tpu("v5litepod-16", slice_count=2, ram="8g")
    assert (tpu.device, tpu.replicas, tpu.ram) == (TpuConfig("v5litepod-16"), 8, "8g")


@pytest.mark.parametrize("slice_count", [0, 1.5, "2"])
def test_a_number_of_slices_that_is_none_is_refused(slice_count: Any) -> None:
    with pytest.raises(InvalidInput, match=r"slice_count: .* ask for at least 1 slice"):
        ResourceConfig.with_tpu("v5p-16", slice_count)


@pytest.mark.parametrize("tpu_type", [None, 16])
def test_a_type_of_tpu_is_a_text_or_several(tpu_type: Any) -> None:
    with pytest.raises(InvalidInput, match=r"tpu_type: .* give a type, such as 'v5litepod-16'"):
        ResourceConfig.with_tpu(tpu_type)


def test_chips_and_machines_are_those_of_all_replicas() -> None:
    slices = ResourceConfig.with_tpu("v5p-16", slice_count=2)
    assert (slices.replicas, slices.chip_count()) == (4, 16)
    assert TpuConfig("v5p-16").vm_count() == 2
    assert (TpuConfig("v5p-16").chip_count(), GpuConfig("h100", 8).chip_count(), CpuConfig().chip_count()) == (4, 8, 0)
    assert GpuConfig("h100", 0.5).chip_count() == 1
    assert ResourceConfig.with_gpu("h100", 8, replicas=2).chip_count() == 16


def test_peak_arithmetic_is_that_of_the_chips() -> None:
    assert ResourceConfig.with_tpu("v5p-16", slice_count=2).device_flops() == 459e12
    assert ResourceConfig.with_tpu("v5p-16", slice_count=2).total_flops() == 16 * 459e12
    assert TpuConfig("v6e-8").total_flops("int8") == 8 * 1836e12
    assert GpuConfig("A100-80G", 8).total_flops() == 8 * 312e12
    assert device_flops("v5litepod-16") == device_flops("v5e") == 197e12
    assert device_flops("h100", "amp_bf16") == device_flops_for_jax_device("NVIDIA H100 80GB HBM3") == 989.5e12
    assert device_flops_for_jax_device("TPU v5 lite") == 197e12
    assert device_flops("h100-nvl") is device_flops("v5p", "fp4") is device_flops_for_jax_device("cpu") is None


@pytest.mark.parametrize("device", [CpuConfig(), GpuConfig("auto"), GpuConfig("mystery")])
def test_an_unknown_figure_of_a_device_is_not_made_up(device: CpuConfig | GpuConfig) -> None:
    with pytest.raises(InvalidInput, match="known"):
        ResourceConfig(device=device).total_flops()


def test_resources_are_scaled_in_their_units() -> None:
    config = ResourceConfig(cpu=2, ram="3g", disk=10**9, preemptible=False)
    assert config.scale(0.5) == ResourceConfig(cpu=1, ram="1.5g", disk=5 * 10**8, preemptible=False)
    assert config.scale(ram=2) == dataclasses.replace(config, ram="6g")
    assert ResourceConfig(ram="10 GiB").scale(10).ram == "100 GiB"


@pytest.mark.parametrize(
    "scale",
    [lambda config: config.scale(2, cpu=2), lambda config: config.scale(-1), lambda config: config.scale(disk=-1)],
)
def test_a_scale_that_makes_no_sense(scale: Callable[[ResourceConfig], object]) -> None:
    with pytest.raises(InvalidInput, match="factor"):
        scale(ResourceConfig())


def test_programs_get_the_variables_of_their_device() -> None:
    devices = (CpuConfig(), GpuConfig("h100"), TpuConfig("v6e-4"))
    assert [device.default_env_vars() for device in devices] == [
        {"JAX_PLATFORMS": "cpu"},
        {"JAX_PLATFORMS": ""},
        {"JAX_PLATFORMS": ""},
    ]


def test_an_entrypoint_says_of_which_kind_it_is() -> None:
    call, command = Entrypoint.from_callable(print), Entrypoint.from_binary("true")
    assert (call.callable_entrypoint, call.binary_entrypoint) == (call, None)
    assert (command.callable_entrypoint, command.binary_entrypoint) == (None, command)


def test_secrets_have_two_names() -> None:
    secret = {"PASSWORD": "hunter2"}
    assert EnvironmentConfig(secrets=secret) == EnvironmentConfig(secret_env_vars=secret)
    assert create_environment(secrets=secret).secret_env_vars["PASSWORD"] == "hunter2"
    with pytest.raises(InvalidInput, match=r"environment\.secrets") as caught:
        EnvironmentConfig(secret_env_vars=secret, secrets=secret)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(EnvironmentConfig(secrets=secret))


def test_values_can_be_changed_by_replace_and_pickled() -> None:
    config = ResourceConfig.with_cpu(cpu=2, ram="1g", regions=["us"])
    changed = dataclasses.replace(config, ram="2g")
    assert (changed.ram, changed.cpu, changed.regions) == ("2g", 2, ["us"])
    assert pickle.loads(pickle.dumps(config)) == config


def test_an_environment_has_the_order_that_programs_give_it_in() -> None:
    named = EnvironmentConfig(extras=["tpu"], pip_packages=["numpy"], env_vars={"A": "1"})
    assert EnvironmentConfig(["tpu"], ["numpy"], {"A": "1"}) == named
    assert EnvironmentConfig.create(["tpu"], ["numpy"], {"A": "1"}) == named


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EnvironmentConfig({"A": "hunter2"}), "environment.extras: .*env_vars="),  # type: ignore[arg-type]
        (lambda: EnvironmentConfig(pip_packages="numpy"), "environment.pip_packages: .*list"),
        (lambda: EnvironmentConfig(env_vars=["A=hunter2"]), "environment.env_vars: .*dict"),  # type: ignore[arg-type]
        (lambda: EnvironmentConfig(secrets=["A"]), "environment.secret_env_vars: .*dict"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_in_the_wrong_place_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        make()
    assert "hunter2" not in str(caught.value)


def test_secrets_do_not_show_in_a_repr() -> None:
    assert "hunter2" not in repr(EnvironmentConfig.create(secret_env_vars={"PASSWORD": "hunter2"}))


@pytest.mark.parametrize("status", list(JobStatus))
def test_three_statuses_are_final(status: JobStatus) -> None:
    assert JobStatus.finished(status) == (status in ("succeeded", "failed", "stopped"))


def test_job_failed_survives_pickling_with_its_traceback() -> None:
    exit = AttemptExit(kind="exception", traceback="Traceback ...\nKeyError: 3")
    info = JobInfo(JobId("a-1"), "a", JobStatus.FAILED, "exception: KeyError", 1.0, 2.0, Namespace("a"), exit)
    error = pickle.loads(pickle.dumps(JobFailed.of(info)))
    assert error.info == info
    assert "job a-1 failed at attempt 1" in str(error)
    assert "KeyError: 3" in str(error)


def test_errors_about_jobs_are_made_as_programs_make_them() -> None:
    failed = pickle.loads(pickle.dumps(JobFailed("job-1", JobStatus.FAILED)))
    assert (failed.job_id, failed.failed_status, failed.info) == ("job-1", JobStatus.FAILED, None)
    assert str(failed) == "job job-1 failed"
    exists = pickle.loads(pickle.dumps(JobAlreadyExists("nightly")))
    assert (exists.job_name, exists.handle) == ("nightly", None)
    assert str(exists).startswith("a job named nightly runs already;")


def test_importing_fray_imports_no_store_and_no_service() -> None:
    code = "import sys, fray; fray.JobRequest; print(*[m for m in sys.modules if m.startswith(('fray_co', 'fray_ag'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == ""


@pytest.mark.parametrize(
    "use",
    ["fray.queue import FileQueue", "fray.rpc import ActorServer", "fray.pool import WorkerPool", "fray import actor"],
)
def test_who_uses_a_cluster_imports_no_agent(use: str) -> None:
    """An agent's code takes as long to import as everything else together."""
    code = f"import sys; from {use}; print('fray_agents.agent' in sys.modules, 'packaging' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_no_module_hides_a_name_that_its_package_offers() -> None:
    """Once a submodule is imported, it is the package's attribute of that name. `fray.current_client` can be called."""
    stubs = list(Path(fray.__file__).parent.rglob("__init__.pyi"))
    assert len(stubs) > 5
    hidden = {
        str(module)
        for stub in stubs
        for name in re.findall(r"\bas (\w+)", stub.read_text())
        if (module := stub.with_name(f"{name}.py")).exists()
    }
    assert [Path(path).name for path in hidden] == ["current_client.py"]


def test_the_package_offers_its_names_and_no_others() -> None:
    import fray

    assert {name for name in vars(fray)["__all__"] if getattr(fray, name) is not None} == set(dir(fray))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = fray.nonsense  # type: ignore[attr-defined]
