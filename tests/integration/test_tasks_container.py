"""Tasks in containers, by an engine that is not one: what its processes do is real, but for their isolation.

`make test-containers` shows the same with podman.
"""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fray_agents.host.container_engine import ContainerEngine
from fray_agents.tasks.process_task import ProcessTask
from fray_agents.tasks.task_handle import StartFailed
from tests.support import fake_engine
from tests.support.processes import is_alive
from tests.support.tasks import FAR, STUBBORN, boottime, contained, ended, lines_of, pids_in, run, started
from tests.support.waiting import eventually


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the fake engine. Its processes end with the test."""
    folder = tmp_path / "engine"
    folder.mkdir()
    yield folder
    for daemon in folder.glob("state/*/daemon"):
        if is_alive(int(daemon.read_text())):
            os.killpg(int(daemon.read_text()), signal.SIGKILL)


@pytest.fixture
def engine(folder: Path) -> ContainerEngine:
    return ContainerEngine("podman", str(fake_engine.install(folder)))


def calls(folder: Path, verb: str) -> list[list[str]]:
    """The arguments of each call of the engine with this verb."""
    lines = (folder / "state/calls").read_text().splitlines()
    return [call[1:] for call in map(json.loads, lines) if call[0] == verb]


def removed(folder: Path) -> bool:
    """Whether every container that was made has been removed."""
    return not [made for made in folder.glob("state/*/made") if not made.parent.name.startswith("removed-")]


async def test_the_command_has_the_programs_output_result_and_exit_code(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    end, log = await run(contained(engine, tmp_path, "echo out; echo err >&2; pwd; echo 7 > $FRAY_RESULT; exit 3"))
    assert (end.exit.kind, end.exit.code) == ("exited", 3)
    assert lines_of(log) == [b"out", f"{tmp_path}/work".encode()]
    assert lines_of(log, "stderr") == [b"err"]
    assert removed(folder)
    end, _ = await run(contained(engine, tmp_path / "again", "echo 7 > $FRAY_RESULT"))
    assert end.result is not None
    assert end.result.path.read_text() == "7\n"


async def test_variables_arrive_as_they_are_and_are_on_no_command_line(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    odd = {"TOKEN": "line 1\nline '2' \"$HOME\" #", "HTTP_PROXY": "http://user:secret@proxy", "EMPTY": ""}
    script = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))' > env"
    await run(contained(engine, tmp_path, script, odd | {"TO*": "any"}))
    env = json.loads((tmp_path / "work/env").read_text())
    assert {name: env[name] for name in odd} == odd
    assert "secret" not in (folder / "state/calls").read_text()
    assert "line 1" not in (folder / "state/calls").read_text()
    assert "TO*" not in (folder / "state/calls").read_text()
    assert (tmp_path / "container.env").stat().st_mode & 0o777 == 0o600


async def test_the_tasks_directory_is_there_under_its_own_name(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    spec = contained(engine, tmp_path, "true")
    assert spec.container is not None
    await run(replace(spec, container=replace(spec.container, mounts=[Path("/data")], device_flags=["--gpus=all"])))
    [made] = calls(folder, "create")
    assert {f"--volume={tmp_path}:{tmp_path}", "--volume=/data:/data", "--gpus=all", "--network=host"} < set(made)
    assert made[-4:] == ["debian", "sh", "-c", "true"]


async def test_each_process_is_told_once_to_end_and_may_do_so_in_its_grace(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    child = "trap 'echo child >> told; exit' TERM; touch ready; while :; do sleep 0.02; done"
    script = f"trap 'echo told >> told; wait $!; exit 0' TERM; ({child}) & wait"
    task = await started(contained(engine, tmp_path, script))
    await eventually((tmp_path / "work/ready").exists)
    task.stop(FAR, "preempted")
    end = await ended(task)
    assert (end.exit.kind, end.complete_before_stop) == ("success", False)
    assert sorted((tmp_path / "work/told").read_text().split()) == ["child", "told"]
    assert removed(folder)


async def test_a_task_that_does_not_end_in_its_grace_is_killed(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    task = await started(contained(engine, tmp_path, STUBBORN))
    pids = await pids_in(tmp_path / "work/pids", 4)
    task.stop(0.3, "stopped")
    end = await ended(task)
    assert (end.exit.kind, end.exit.code) == ("stopped", 128 + signal.SIGKILL)
    assert not any(map(is_alive, pids))
    assert removed(folder)


async def test_a_container_that_has_not_begun_is_not_waited_for(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    real = (folder / "podman").rename(folder / "real")
    (folder / "podman").write_text(f'#!/bin/sh\n[ $1 = start ] && exec sleep 600\nexec {real} "$@"\n')
    (folder / "podman").chmod(0o755)
    task = await started(contained(engine, tmp_path, "true"))
    task.stop(FAR, "stopped")
    assert (await ended(task)).exit.kind == "stopped"


async def test_a_killed_runner_takes_the_container_with_it(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    task = await started(contained(engine, tmp_path, "echo $$ > pids; while :; do sleep 0.05; done"))
    pids = await pids_in(tmp_path / "work/pids", 1)
    os.kill(task.runner_pid, signal.SIGKILL)
    end = await ended(task)
    assert end.exit.kind == "lost"
    assert removed(folder)
    assert not any(map(is_alive, pids))


AGENT = """
import asyncio, sys
from pathlib import Path
from fray_agents.host.container_engine import ContainerEngine
from fray_agents.tasks.process_task import ProcessTask
from tests.support.tasks import FAR, boottime, contained

async def main(program, directory, lock):
    script = "echo $$ > pids; while :; do sleep 0.05; done"
    what = contained(ContainerEngine("podman", program), Path(directory), script)
    task = await ProcessTask.start(what, boottime() + FAR, int(lock))
    print(task.runner_pid, flush=True)
    await task.wait()

asyncio.run(main(*sys.argv[1:]))
"""


def test_agent_and_runner_killed_at_once_leave_no_container_and_the_lock_is_free_only_then(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    arguments = [sys.executable, "-c", AGENT, engine.program, str(tmp_path), str(lock)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], pass_fds=[lock]
    ) as agent:
        assert agent.stdout is not None
        runner = int(agent.stdout.readline())
        os.close(lock)
        pids = asyncio.run(pids_in(tmp_path / "work/pids", 1))
        agent.send_signal(signal.SIGSTOP)
        os.kill(runner, signal.SIGKILL)
        agent.kill()
    with open(tmp_path / "lock") as freed:
        fcntl.flock(freed, fcntl.LOCK_EX)  # the processes that they started are gone
    assert removed(folder)
    assert not any(map(is_alive, pids))


async def test_an_engine_that_cannot_make_the_container_is_the_hosts_trouble(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    (folder / "state/refuse-create").write_text("Error: no space left on device")
    with pytest.raises(StartFailed, match="no space left on device"):
        await started(contained(engine, tmp_path, "true"))


async def test_an_engine_that_cannot_start_the_container_is_the_hosts_trouble(
    tmp_path: Path, folder: Path, engine: ContainerEngine
) -> None:
    (folder / "state/refuse-start").write_text("Error: cgroups are not what they were")
    end, log = await run(contained(engine, tmp_path, "true"))
    assert end.exit.kind == "start-failed"
    assert b"cgroups are not what they were" in log
    assert removed(folder)


async def test_usage_is_that_of_the_containers_processes(tmp_path: Path, folder: Path, engine: ContainerEngine) -> None:
    script = f"{sys.executable} -c 'import time; held = bytearray(80_000_000); time.sleep(600)'"
    task = await started(contained(engine, tmp_path, script))
    await eventually(lambda: task.usage is not None and task.usage.memory > 80_000_000)
    task.kill()
    assert (await ended(task)).exit.usage.memory_peak > 80_000_000  # type: ignore[union-attr]


async def test_a_passed_deadline_kills_the_container(tmp_path: Path, folder: Path, engine: ContainerEngine) -> None:
    task = await started(contained(engine, tmp_path, STUBBORN, grace=FAR))
    pids = await pids_in(tmp_path / "work/pids", 4)
    task.set_deadline(boottime())
    assert (await ended(task)).exit.kind == "preempted"
    assert not any(map(is_alive, pids))


async def test_a_start_that_is_given_up_leaves_nothing(tmp_path: Path, folder: Path, engine: ContainerEngine) -> None:
    task = await ProcessTask.start(contained(engine, tmp_path, "touch begun"), boottime() - 1, None)
    assert (await ended(task)).exit.kind == "preempted"
    assert removed(folder)
    assert not (tmp_path / "work/begun").exists()
