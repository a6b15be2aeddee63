"""What tasks find in their environment besides what `layouts/README.md` promises about FRAY_*."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fray_agents.host.network import NetworkSettings
from fray_agents.tasks.environment import task_environment
from fray_layouts.records import JobRecord
from fray_layouts.spec import EntrypointSpec, EnvironmentSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec


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


def test_what_the_job_or_its_agent_says_about_threads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
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
