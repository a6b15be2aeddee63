"""Jobs of a cluster in real containers: commands and callables, with a workspace, with packages, with a port."""

import asyncio
import base64
import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import put_blob
from fray_layouts.records import JobRecord
from tests.support.agents import agents, ended, launch, quick_core
from tests.support.archives import file, packed
from tests.support.waiting import eventually
from tests.support.wheels import make_wheel, only_wheels

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORKSPACE = packed(
    file("src/greeting/__init__.py", b"TEXT = 'hello from the workspace'\n"), file("data.txt", b"data\n")
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def run(core: Core, image: str, call: Callable[[], Any], **environment: Any) -> JobRecord:
    pickle = base64.b64encode(cloudpickle.dumps((call, (), {}))).decode()
    environment = {"docker_image": image, **environment}
    entrypoint = {"callable": {"pickle": pickle}}
    return await ended(core, await launch(core, "", entrypoint=entrypoint, environment=environment))


async def test_a_callable_runs_with_the_images_python_and_the_agents_fray(tmp_path: Path, image: str) -> None:
    def call() -> dict[str, Any]:
        import fray_agents
        from fray.cluster import Entrypoint, JobRequest, current_cluster

        print("from the container")
        child = current_cluster().launch(JobRequest("child", Entrypoint.from_binary("true")))
        current_cluster().wait(child, raise_on_failure=True)
        modules = [name for name in sys.modules if name == "msgspec"]
        return {"image": os.environ["IMAGE_SAYS"], "modules": modules, "fray": fray_agents.__file__}

    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            job = await run(core, image, call)
    assert job.result is not None, job.exit
    assert job.result.value["image"] == "hello"
    assert job.result.value["modules"] == ["msgspec"]


async def test_an_exception_comes_back_with_its_traceback(tmp_path: Path, image: str) -> None:
    def call() -> None:
        raise ValueError("no such thing")

    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            job = await run(core, image, call)
    assert job.exit is not None
    assert (job.exit.kind, job.exit.message) == ("exception", "ValueError: no such thing")


@pytest.mark.parametrize("packages", [False, True])
async def test_workspace_and_packages_are_in_the_container(
    packages: bool, tmp_path: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "wheels", "tiny")
    for name, value in only_wheels(tmp_path / "wheels", tmp_path / "uv").items():
        monkeypatch.setenv(name, value)

    def call() -> list[str]:
        import importlib.util

        import greeting

        found = importlib.util.find_spec("tiny")
        with open("data.txt") as data:
            return [greeting.TEXT, data.read(), importlib.import_module("tiny").VERSION if found else ""]

    environment = {"pip_packages": ["tiny"]} if packages else {}
    async with quick_core(tmp_path / "root") as core:
        workspace = {"blob": await put_blob(core, WORKSPACE)}
        with agents(core.root, tmp_path / "work"):
            job = await run(core, image, call, workspace=workspace, **environment)
            command = ["python3", "-c", "import os, greeting; print(os.environ['PATH'])"]
            asked = {"docker_image": image, "workspace": workspace, **environment}
            assert (await ended(core, await launch(core, command, environment=asked))).status == "succeeded"
    assert job.result is not None, job.exit
    assert job.result.value == ["hello from the workspace", "data\n", "1.0" if packages else ""]


SERVICE = """
import http.server, os
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["FRAY_PORT_HTTP"])), http.server.SimpleHTTPRequestHandler)
with open("port.part", "w") as file: file.write(os.environ["FRAY_PORT_HTTP"])
os.rename("port.part", "port")
server.handle_request()
"""


async def test_a_service_in_a_container_is_reached_at_its_port(tmp_path: Path, image: str) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            service = ["python3", "-c", SERVICE]
            submitted = await launch(core, service, ports=["http"], environment={"docker_image": image})
            said = await eventually(lambda: next(tmp_path.glob("work/*/*/work/port"), None))
            port = said.read_text()
            answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/port")
            assert answer.read().decode() == port
            assert (await ended(core, submitted)).status == "succeeded"


async def test_a_container_that_takes_more_memory_than_its_job_asked_for_is_ended(tmp_path: Path, image: str) -> None:
    script = "held = bytearray(400_000_000)\nimport time; time.sleep(600)"
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work"):
            resources = {"memory": 100_000_000}
            command = ["python3", "-c", script]
            submitted = await launch(core, command, resources=resources, environment={"docker_image": image})
            job = await ended(core, submitted)
    assert job.exit is not None
    assert job.exit.kind == "out-of-memory"
    assert "python3" in job.exit.message
