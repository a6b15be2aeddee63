"""The environment variables of tasks besides the FRAY_* ones that `layouts/README.md` promises."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fray_agents.tasks.environment import task_environment
from fray_layouts.records import JobRecord, Placement, PlacementMember, SliceMember
from fray_layouts.spec import EntrypointSpec, EnvironmentSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec
from fray_runtime.network import NetworkSettings


def variables(cpu: float = 1, **env_vars: str) -> dict[str, str]:
    spec = JobSpec(
        name="train",
        entrypoint=EntrypointSpec(command=["python"]),
        resources=ResourceSpec(cpu=cpu),
        environment=EnvironmentSpec(env_vars=env_vars),
    )
    job = JobRecord(id="train-1", spec=spec, status="running", submitted_at=0.0)
    return task_environment(job, "/root", "agent-1", Path("/tmp"), NetworkSettings(), {})


def threads(cpu: float, **env_vars: str) -> str:
    return variables(cpu, **env_vars)["OMP_NUM_THREADS"]


def test_numerical_libraries_use_the_cores_that_the_job_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads(8), threads(2.5), threads(0.1), threads(0)] == ["8", "2", "1", "1"]


def test_the_setting_of_threads_by_the_job_or_its_agent_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads(8) == "3"
    assert threads(8, OMP_NUM_THREADS="4") == "4"


def test_the_variable_of_a_port_is_its_name_in_capitals() -> None:
    job = JobRecord(id="j-1", spec=parse_spec({"name": "j", "entrypoint": {"command": ["true"]}}), status="running")
    env = task_environment(job, "/root", "agent-1", Path("/tmp"), NetworkSettings(), {"http": 20001, "grpc-web": 20002})
    assert (env["FRAY_PORT_HTTP"], env["FRAY_PORT_GRPC_WEB"]) == ("20001", "20002")


def test_a_job_s_python_is_that_of_its_agent_though_nobody_put_it_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert variables()["PATH"] == f"{folder}:/usr/bin:/bin"
    assert variables(PATH="/opt/bin")["PATH"] == "/opt/bin"
    monkeypatch.delenv("PATH")  # as in a unit of systemd that sets none
    assert variables()["PATH"].split(":")[0] == folder


def gang(members: list[PlacementMember], **spec: object) -> JobRecord:
    replicas = sum(len(member.bundles) for member in members)
    wanted = parse_spec({"name": "g", "entrypoint": {"command": ["true"]}, "replicas": replicas, **spec})
    return JobRecord(id="g-1", spec=wanted, status="running", placement=Placement(round=1, members=members))


def of_replica(job: JobRecord, replica: int) -> dict[str, str]:
    network = NetworkSettings(advertise="here")
    env = task_environment(job, "/root", "agent-1", Path("/tmp"), network, {}, replica)
    return {name: env[name] for name in env if name.startswith(("FRAY_", "JAX_", "TPU_", "MEGASCALE_"))}


def test_a_task_knows_its_memory_limit_if_it_has_one() -> None:
    asked = {"name": "j", "entrypoint": {"command": ["true"]}, "resources": {"memory": "400MB"}}
    job = JobRecord(id="j-1", spec=parse_spec(asked), status="running")
    assert of_replica(job, 0)["FRAY_MEMORY_LIMIT"] == "400000000"
    assert "FRAY_MEMORY_LIMIT" not in variables()


def test_threads_of_a_task_with_a_memory_limit_keep_no_freed_memory_of_their_own() -> None:
    asked = {"name": "j", "entrypoint": {"command": ["true"]}, "resources": {"memory": "400MB"}}

    def arenas(**fields: Any) -> str | None:
        job = JobRecord(id="j-1", spec=parse_spec(asked | fields), status="running")
        return task_environment(job, "/root", "agent-1", Path("/tmp"), NetworkSettings(), {}).get("MALLOC_ARENA_MAX")

    assert arenas() == "1"
    assert arenas(environment={"env_vars": {"MALLOC_ARENA_MAX": "4"}}) == "4"
    assert arenas(resources={}) == os.environ.get("MALLOC_ARENA_MAX")


def test_a_single_job_is_the_only_replica_of_its_own() -> None:
    job = JobRecord(id="j-1", spec=parse_spec({"name": "j", "entrypoint": {"command": ["true"]}}), status="running")
    env = of_replica(job, 0)
    assert (env["FRAY_REPLICA"], env["FRAY_REPLICAS"], env["FRAY_INDEX"]) == ("0", "1", "0")
    assert (env["FRAY_WORKERS"], env["FRAY_HOST"], env["FRAY_HOSTS"]) == ("here", "0", "1")
    assert "JAX_PROCESS_ID" not in env


def test_the_replicas_of_a_gang_know_one_another() -> None:
    members = [
        PlacementMember(agent="b", address="hostb", bundles=[2]),
        PlacementMember(agent="a", address="fe80::1", bundles=[0, 1], ports={"coordinator": 20001}),
    ]
    job = gang(members, environment={"env_vars": {"JAX_PROCESS_ID": "mine"}})
    first, last = of_replica(job, 0), of_replica(gang(members), 2)
    assert (last["FRAY_REPLICA"], last["FRAY_REPLICAS"], last["FRAY_INDEX"]) == ("2", "3", "2")
    assert last["FRAY_WORKERS"] == "fe80::1;fe80::1;hostb"
    assert (last["FRAY_HOST"], last["FRAY_HOSTS"]) == ("1", "2")
    assert last["FRAY_COORDINATOR"] == last["JAX_COORDINATOR_ADDRESS"] == "[fe80::1]:20001"
    assert (last["JAX_NUM_PROCESSES"], last["JAX_PROCESS_ID"]) == ("3", "2")
    assert first["JAX_PROCESS_ID"] == "mine", "what the job says wins"
    assert not any(name.startswith(("TPU_", "MEGASCALE_")) for name in last)


def slices(count: int) -> JobRecord:
    """A gang of slices of two hosts."""
    members = [
        PlacementMember(
            agent=f"a{n}",
            address=f"host{n}",
            bundles=[n],
            slice=SliceMember(id=f"s{n // 2}", type="v5litepod-16", index=n % 2, hosts=2),
            ports={"coordinator": 20001, "megascale": 20002} if n == 0 else {},
        )
        for n in range(2 * count)
    ]
    device = {"kind": "tpu", "variant": "v5litepod-16", "count": 4}
    return gang(members, slices=count, resources={"device": device})


def test_the_hosts_of_a_slice_have_the_variables_of_tpus() -> None:
    env = of_replica(slices(1), 1)
    assert (env["TPU_WORKER_ID"], env["TPU_WORKER_HOSTNAMES"]) == ("1", "host0,host1")
    assert env["TPU_ACCELERATOR_TYPE"] == "v5litepod-16"
    assert (env["FRAY_SLICE"], env["FRAY_SLICES"]) == ("0", "1")
    assert not any(name.startswith("MEGASCALE_") for name in env)


def test_several_slices_have_the_variables_that_connect_them() -> None:
    env = of_replica(slices(2), 3)
    assert (env["TPU_WORKER_ID"], env["TPU_WORKER_HOSTNAMES"]) == ("1", "host2,host3")
    assert {name: value for name, value in env.items() if name.startswith("MEGASCALE_")} == {
        "MEGASCALE_COORDINATOR_ADDRESS": "host0",
        "MEGASCALE_PORT": "20002",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
    assert (env["FRAY_SLICE"], env["FRAY_SLICES"]) == ("1", "2")
    assert env["JAX_PROCESS_ID"] == "3", "worker + slice * workers of a slice, as JAX counts on TPUs"


def test_a_task_knows_the_jobs_above_its_own() -> None:
    spec = parse_spec({"name": "j", "entrypoint": {"command": ["true"]}})
    job = JobRecord(id="j-1", spec=spec, status="running", ancestors=["top-1", "middle-1"])
    assert of_replica(job, 0)["FRAY_ANCESTORS"] == "top-1 middle-1"
