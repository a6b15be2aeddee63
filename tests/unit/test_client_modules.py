"""Modules and names that programs of the ecosystem import, and the TPU slices they ask for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from fray.cluster import LocalCluster, create_cluster, open_cluster
from fray.errors import InvalidInput
from fray.job import RayContext, ThreadContext, create_job_ctx
from fray.types import ResourceConfig, TpuConfig, TpuTopologyInfo, get_tpu_topology
from fray_layouts.topology import TPU_TOPOLOGIES, tpu_family
from tests.support import second_names

OF_JOBS = (
    "ANY_REGION CpuConfig DeviceConfig DeviceKind Entrypoint EnvironmentConfig GpuConfig GpuType JobRequest JobStatus"
)
OF_JOBS += " ResourceConfig TpuConfig TpuTopologyInfo TpuType create_environment get_tpu_topology"
IMPORTED = {
    "fray": f"{OF_JOBS} ActorConfig ActorFuture ActorHandle Client current_actor current_client wait_all",
    "fray.actor": "ActorFuture ActorGroup ActorHandle ActorMethod ActorUnavailableError HostedActor current_actor",
    "fray.client": "Client JobAlreadyExists JobFailed JobHandle wait_all",
    "fray.cluster": OF_JOBS,
    "fray.current_client": "current_client set_current_client",
    "fray.job": "RayContext SyncContext ThreadContext create_job_ctx fray_default_job_ctx get_default_job_ctx",
    "fray.local_backend": "LocalClient",
    "fray.types": f"{OF_JOBS} ActorConfig",
}
TOP = Path(__file__).parents[2]


@pytest.mark.parametrize("module", IMPORTED)
def test_names_are_where_programs_import_them(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in IMPORTED[module].split() if not hasattr(found, name)] == []


def test_a_second_name_is_the_same_object() -> None:
    assert [second for second, name in second_names.pairs() if named(second) is not named(name)] == []


def named(dotted: str) -> object:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_page_lists_all_second_names() -> None:
    lines = (TOP / "docs" / "jobs.md").read_text().splitlines()
    begin = lines.index("| second name | is |") + 2
    assert lines[begin : lines.index("", begin)] == list(second_names.table())


IMPORTS = """fray.client JobStatus
fray.actor ActorContext
fray.local_backend LocalJobHandle
fray.job.context create_job_ctx
fray.job.context _job_context
fray.job.context RayContext
fray.job SimpleActor
fray.cluster create_cluster
fray.cluster set_current_cluster
fray.cluster.base TpuConfig
fray.cluster.local_cluster LocalClusterConfig
fray.queue.file FileQueue
fray.v2.local_backend LocalClient
fray.v2.client JobStatus
fray.v1.cluster ResourceConfig
fray.v1.job create_job_ctx
fray.device_flops device_flops"""


@pytest.mark.parametrize("line", IMPORTS.splitlines())
def test_the_names_that_programs_import_exist(line: str) -> None:
    assert named(line.replace(" ", ".")) is not None


@pytest.mark.parametrize("module", ["fray.job.context", "fray.v1.job.context"])
def test_modules_that_need_each_other_can_be_imported_first(module: str) -> None:
    code = f"from {module} import ThreadContext, create_job_ctx, _job_context"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import fray.current_client", "from fray import current_client", "import fray.v2"])
def test_the_current_client_is_called_by_its_name_after_any_imports(first: str) -> None:
    code = f"{first}\nimport fray\nfrom fray import current_client\nassert fray.current_client() == current_client()"
    environment = {"FRAY_CLUSTER_SPEC": "memory://here", "FRAY_NAMESPACE": "here"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("v4-8", (4, 1, 1, 4)),
        ("v4-64", (32, 8, 8, 4)),
        ("v5p-12288", (6144, 1536, 1536, 4)),
        ("v5litepod-8", (8, 1, 1, 8)),
        ("v5litepod-16", (16, 2, 4, 4)),
        ("v6e-8", (8, 1, 1, 8)),
        ("v6e-256", (256, 64, 64, 4)),
    ],
)
def test_chips_hosts_and_machines_of_a_slice(name: str, counts: tuple[int, int, int, int]) -> None:
    assert get_tpu_topology(name) == TpuTopologyInfo(name, *counts)


def test_every_slice_adds_up() -> None:
    for info in TPU_TOPOLOGIES.values():
        assert info.chip_count == info.vm_count * info.chips_per_vm
        assert info.host_count <= info.vm_count


def test_an_unknown_slice_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="v6e-1, v6e-4"):
        get_tpu_topology("v6e-5")


def test_several_kinds_of_slices_must_be_alike() -> None:
    config = ResourceConfig.with_tpu(["v5litepod-4", "v6e-4"])
    assert (config.device, config.device_alternatives) == (TpuConfig("v5litepod-4"), ["v6e-4"])
    assert {config: "may be a key"}[config]
    with pytest.raises(InvalidInput, match="same number of machines"):
        ResourceConfig.with_tpu(["v6e-4", "v6e-8"])
    with pytest.raises(InvalidInput, match="name at least one type"):
        ResourceConfig.with_tpu([])
    assert [tpu_family(name) for name in ("v4-8", "v5litepod-4", "v5p-8", "v6e-1")] == ["v4", "v5e", "v5p", "v6e"]
    with pytest.raises(InvalidInput, match="tpu_type"):
        tpu_family("h100")


def test_resources_compare_by_value_and_can_be_keys() -> None:
    assert {ResourceConfig(cpu=2, ram="1g"): "same"}[ResourceConfig(cpu=2, ram="1g")] == "same"
    assert ResourceConfig(cpu=2) != ResourceConfig(cpu=2, image="other")


def test_a_cluster_of_ray_is_no_folder_of_that_name() -> None:
    mine = create_cluster("ray?namespace=mine")
    assert (repr(mine), mine.namespace) == ("RayJobs('ray')", "mine")
    with pytest.raises(InvalidInput, match="ray:auto"):
        create_cluster("ray?nodes=3")


def test_a_local_cluster_with_options_is_no_folder_of_that_name() -> None:
    threads = create_cluster("local?use_isolated_env=False")
    assert isinstance(threads, LocalCluster)
    assert not threads.use_processes
    assert create_cluster("local?use_isolated_env=False") is threads
    with pytest.raises(InvalidInput, match=r"local\?nodes=3"):
        create_cluster("local?nodes=3")
    threads.close()


def test_on_iris_a_job_context_has_threads_and_needs_no_iris(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "iris:auto")
    with create_job_ctx("auto", max_workers=2, memory="1GB") as context:
        assert isinstance(context, ThreadContext)


def test_a_root_that_may_be_meant_as_a_folder_is_not_taken_for_an_iris() -> None:
    with pytest.raises(InvalidInput, match=r"for a folder '\./iris'"):
        open_cluster("iris")


def test_tasks_on_ray_need_ray() -> None:
    """Ray is not installed in the environment of these tests."""
    for context in (create_job_ctx("ray"), RayContext()):
        with pytest.raises(InvalidInput, match=r"'\.\[ray\]'"):
            context.put(1)
