"""Tasks in real containers: they stop, are measured and end as without, and none outlives its runner."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fray_agents.host.container_engine import ContainerEngine
from fray_agents.tasks.task_handle import TaskSpec
from tests.support.processes import is_alive
from tests.support.tasks import STUBBORN, contained, ended, lines_of, run, started
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _none_is_left(engine: ContainerEngine) -> object:
    yield
    listed = subprocess.run([engine.program, "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    assert listed.stdout == ""


@pytest.fixture
def marked(tmp_path: Path) -> str:
    """A word in the command lines of a test's processes."""
    return f"marked-{tmp_path.name}"


def processes(word: str) -> list[int]:
    """This host's processes that have the word in their command lines, but for those of the engine."""
    found = subprocess.run(["pgrep", "-f", f"^(sh|sleep|[^ ]*python3?).*{word}"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split() if int(pid) != os.getpid()]


async def test_a_task_has_the_images_files_its_own_variables_and_the_agents_user(
    tmp_path: Path, engine: ContainerEngine, image: str
) -> None:
    odd = {"TOKEN": "line 1\nline '2' \"$HOME\" #", "FRAY_RESULT": f"{tmp_path}/result", "HTTP_PROXY": "http://p"}
    script = 'env > env; id -u; echo "$TOKEN" > token; cat /etc/hostname; echo err >&2; echo 7 > $FRAY_RESULT'
    end, log = await run(contained(engine, tmp_path, script, odd, image))
    assert end.exit.kind == "success"
    assert end.result is not None
    assert f"{os.geteuid()}".encode() in lines_of(log)
    assert b"stderr F err" in log
    assert (tmp_path / "work/token").read_text() == odd["TOKEN"] + "\n"
    assert (tmp_path / "work/token").stat().st_uid == os.geteuid()
    env = (tmp_path / "work/env").read_text().splitlines()
    assert {"IMAGE_SAYS=hello", "HTTP_PROXY=http://p"} < set(env)
    assert not [line for line in env if line.startswith("VIRTUAL_ENV")]


@pytest.mark.parametrize(
    ("script", "code"), [("sleep 0.5; exit 3", 3), ("no-such-program", 127), ("sleep 1; exit 125", 125)]
)
async def test_a_programs_exit_code_is_the_tasks(
    script: str, code: int, tmp_path: Path, engine: ContainerEngine, image: str
) -> None:
    end, _ = await run(contained(engine, tmp_path, script, image=image))
    assert (end.exit.kind, end.exit.code) == ("exited", code)


async def test_a_program_reads_its_input_to_the_end(tmp_path: Path, engine: ContainerEngine, image: str) -> None:
    text = b"hello\n" * 20_000
    _, log = await run(replace(contained(engine, tmp_path, "cat > all; echo read", image=image), stdin=text))
    assert b"read" in lines_of(log)
    assert (tmp_path / "work/all").read_bytes() == text


async def test_a_program_may_finish_in_its_grace(tmp_path: Path, engine: ContainerEngine, image: str) -> None:
    script = "trap 'echo told >> told; exit 0' TERM; touch ready; while :; do sleep 0.02; done"
    task = await started(contained(engine, tmp_path, script, image=image))
    await eventually((tmp_path / "work/ready").exists)
    task.stop(60.0, "preempted")
    end = await ended(task)
    assert (end.exit.kind, end.complete_before_stop) == ("success", False)
    assert (tmp_path / "work/told").read_text() == "told\n"


def stubborn(engine: ContainerEngine, directory: Path, image: str, marked: str) -> TaskSpec:
    """A tree that does not want to go, whose processes have the word in their command lines."""
    return contained(engine, directory, f": {marked}; {STUBBORN}", image=image)


async def test_a_task_that_ignores_sigterm_is_killed_with_processes_that_left_its_session(
    tmp_path: Path, engine: ContainerEngine, image: str, marked: str
) -> None:
    task = await started(stubborn(engine, tmp_path, image, marked))
    await eventually(
        lambda: len((tmp_path / "work/pids").read_text().split()) == 4 if (tmp_path / "work/pids").exists() else False
    )
    assert processes(marked)
    task.stop(0.5, "stopped")
    end = await ended(task)
    assert (end.exit.kind, end.exit.code) == ("stopped", 128 + signal.SIGKILL)
    assert not processes(marked)


async def test_usage_is_that_of_the_containers_processes(tmp_path: Path, engine: ContainerEngine, image: str) -> None:
    script = "python3 -c 'import time; held = bytearray(80_000_000); time.sleep(600)'"
    task = await started(contained(engine, tmp_path, script, image=image))
    await eventually(lambda: task.usage is not None and task.usage.memory > 80_000_000)
    task.kill()
    end = await ended(task)
    assert end.exit.usage is not None
    assert end.exit.usage.memory_peak > 80_000_000


async def test_a_killed_runner_takes_the_container_with_it(
    tmp_path: Path, engine: ContainerEngine, image: str, marked: str
) -> None:
    task = await started(stubborn(engine, tmp_path, image, marked))
    await eventually((tmp_path / "work/pids").exists)
    os.kill(task.runner_pid, signal.SIGKILL)
    assert (await ended(task)).exit.kind == "lost"
    assert not processes(marked)


async def test_a_frozen_runner_is_killed_and_the_container_too(
    tmp_path: Path, engine: ContainerEngine, image: str, marked: str
) -> None:
    task = await started(stubborn(engine, tmp_path, image, marked))
    await eventually((tmp_path / "work/pids").exists)
    os.kill(task.runner_pid, signal.SIGSTOP)
    task.kill()
    assert (await ended(task)).exit.kind == "stopped"
    assert not processes(marked)


AGENT = """
import asyncio, sys
from pathlib import Path
from fray_agents.host.container_engine import ContainerEngine
from fray_agents.tasks.process_task import ProcessTask
from tests.containers.test_engine import stubborn
from tests.support.tasks import FAR, boottime

async def main(name, program, directory, image, marked):
    what = stubborn(ContainerEngine(name, program), Path(directory), image, marked)
    task = await ProcessTask.start(what, boottime() + FAR, None)
    print(task.runner_pid, flush=True)
    await task.wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kills_runner", [True, False])
def test_a_killed_agent_leaves_no_container(
    kills_runner: bool, tmp_path: Path, engine: ContainerEngine, image: str, marked: str
) -> None:
    arguments = [sys.executable, "-c", AGENT, engine.name, engine.program, str(tmp_path), image, marked]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as agent:
        assert agent.stdout is not None
        runner = int(agent.stdout.readline())
        asyncio.run(eventually((tmp_path / "work/pids").exists))
        agent.send_signal(signal.SIGSTOP)
        if kills_runner:
            os.kill(runner, signal.SIGKILL)
        agent.kill()
    listing = [engine.program, "ps", "--all", "--quiet"]
    asyncio.run(eventually(lambda: not is_alive(runner) and not subprocess.run(listing, capture_output=True).stdout))
    assert not [pid for pid in processes(marked) if is_alive(pid)]
