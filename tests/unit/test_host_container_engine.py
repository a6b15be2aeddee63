"""Which container engine a host has, and the arguments with which it runs a task as if there were no container."""

import socket
from pathlib import Path
from typing import Any

import pytest

from fray_agents.host import container_engine
from fray_agents.host.capacity import discover_software
from fray_agents.host.container_engine import ContainerEngine, EngineFailed, find_engine
from tests.support import fake_engine


@pytest.fixture
def info(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answer of each engine about itself; a test changes it."""
    said: dict[str, Any] = {
        "host": {
            "serviceIsRemote": False,
            "security": {"rootless": False},
            "cgroupVersion": "v2",
            "ociRuntime": {"name": "crun"},
        },
        "Name": socket.gethostname(),
        "SecurityOptions": ["name=seccomp"],
    }

    async def run(engine: ContainerEngine, *arguments: str) -> str:
        return container_engine.json.dumps(said)

    monkeypatch.setattr(ContainerEngine, "run", run)
    monkeypatch.setattr(container_engine.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(container_engine.os, "getegid", lambda: 100)
    return said


async def flags(name: str) -> set[str]:
    return set(await ContainerEngine(name, f"/usr/bin/{name}").flags())


@pytest.mark.parametrize("name", ["podman", "docker"])
async def test_a_container_has_the_hosts_network_and_the_agents_user(name: str, info: dict[str, Any]) -> None:
    assert {"--network=host", "--volume=/dev/shm:/dev/shm", "--user=1000:100", "--init", "--pull=never"} < await flags(
        name
    )


async def test_podman_keeps_a_container_in_the_tasks_cgroup_where_it_can(info: dict[str, Any]) -> None:
    assert "--cgroups=disabled" in await flags("podman")
    info["host"]["ociRuntime"]["name"] = "runc"
    assert "--pids-limit=-1" in await flags("podman")


async def test_podman_without_root_maps_the_agents_user_to_itself(info: dict[str, Any]) -> None:
    info["host"]["security"]["rootless"] = True
    assert "--userns=keep-id" in await flags("podman")


async def test_docker_without_root_maps_its_own_user_to_root(info: dict[str, Any]) -> None:
    info["SecurityOptions"].append("name=rootless")
    assert "--user=0:0" in await flags("docker")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("podman", {"host": {"serviceIsRemote": True}}),
        ("docker", {"Name": "docker-desktop"}),
        ("docker", {"ServerErrors": ["Cannot connect"]}),
    ],
)
async def test_an_engine_that_is_not_on_this_machine_is_refused(
    name: str, change: dict[str, Any], info: dict[str, Any]
) -> None:
    info.update(change)
    with pytest.raises(EngineFailed, match=r"another machine|Cannot connect"):
        await flags(name)


async def test_an_engine_that_fails_is_quoted(tmp_path: Path) -> None:
    engine = ContainerEngine("podman", str(fake_engine.install(tmp_path)))
    (tmp_path / "state/refuse-info").write_text("Error: storage is locked")
    with pytest.raises(EngineFailed, match=r"^Error: storage is locked$"):
        await engine.flags()
    with pytest.raises(EngineFailed, match="cannot be executed: No such file"):
        await ContainerEngine("podman", str(tmp_path / "gone")).flags()


def test_podman_is_found_on_the_path_and_published(tmp_path: Path) -> None:
    fake_engine.install(tmp_path)
    engine = find_engine({"PATH": str(tmp_path)})
    assert engine is not None
    assert (engine.name, engine.program) == ("podman", str(tmp_path / "podman"))
    assert discover_software({"PATH": str(tmp_path)}).containers == "podman"
    assert discover_software({"PATH": ""}).containers == ""


def test_docker_counts_only_where_its_daemon_listens(tmp_path: Path) -> None:
    fake_engine.install(tmp_path, "docker")
    environ = {"PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    assert find_engine(environ) is None
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(f"{tmp_path}/docker.sock")
        daemon.listen()
        found = find_engine(environ)
    assert found is not None
    assert found.name == "docker"
    assert find_engine(environ | {"DOCKER_HOST": "tcp://elsewhere:2375"}) is None


def test_devices_are_given_to_jobs_that_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman, docker = ContainerEngine("podman", "podman"), ContainerEngine("docker", "docker")
    monkeypatch.setattr(container_engine.shutil, "which", lambda name: None)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert podman.device_flags("gpu", tmp_path) == ["--device=/dev/kfd"]
    monkeypatch.setattr(container_engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert podman.device_flags("gpu") == ["--device=nvidia.com/gpu=all"]
    assert docker.device_flags("gpu") == ["--gpus=all"]
    assert docker.device_flags("cpu") == []
    assert "--privileged" in podman.device_flags("tpu")
