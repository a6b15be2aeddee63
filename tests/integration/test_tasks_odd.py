"""A task's end is reported within bounds, for any content of its directory and any fate of its runner."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fray_agents.tasks import callable_main, force_kill, process_task
from fray_agents.tasks.process_task import ProcessTask, start_runner
from fray_agents.tasks.task_handle import StartFailed, TaskFile
from fray_layouts.parsing import MAX_RESULT_DEPTH
from tests.support.processes import is_alive
from tests.support.tasks import (
    FAR,
    STUBBORN,
    boottime,
    end_of,
    ended,
    pids_in,
    sh,
    spec,
    started,
)
from tests.support.waiting import eventually

# --- files in the task's directory


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("mkfifo $FRAY_RESULT", "exited", "a FIFO"),
        ("mkdir $FRAY_RESULT", "exited", "a directory"),
        ("ln -s /etc/passwd $FRAY_RESULT", "exited", "a symbolic link"),
        ("ln -s /dev/zero $FRAY_RESULT", "exited", "a symbolic link"),
        ("ln -s nowhere $FRAY_RESULT", "exited", "a symbolic link"),
        ("truncate -s 200G $FRAY_RESULT", "too-large", "write it to storage"),
    ],
)
def test_a_result_that_is_no_file_is_not_read(tmp_path: Path, script: str, kind: str, message: str) -> None:
    end = end_of(sh(tmp_path, script))
    assert (end.exit.kind, end.exit.code, end.result) == (kind, 0, None)
    assert message in end.exit.message


@pytest.mark.parametrize("depth", [MAX_RESULT_DEPTH, MAX_RESULT_DEPTH + 1, 5000])
def test_a_command_may_leave_json_of_any_depth(tmp_path: Path, depth: int) -> None:
    end = end_of(sh(tmp_path, f"printf '%s' '{'[' * depth}{']' * depth}' > $FRAY_RESULT"))
    assert end.result is not None
    assert end.result.encoding == ("json" if depth <= MAX_RESULT_DEPTH else "bytes")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(("depth", "encoding"), [(MAX_RESULT_DEPTH, "json"), (MAX_RESULT_DEPTH + 1, "pickle")])
def test_a_result_is_encoded_as_json_up_to_the_depth_that_records_may_have(depth: int, encoding: str) -> None:
    assert callable_main.encode_result(nested(depth), 10**6)[0] == encoding


@pytest.mark.parametrize(
    "code",
    [
        "os.mkfifo('../error.json')",
        "os.mkdir('../error.json')",
        "os.symlink('/dev/zero', '../error.json')",
        "open('../error.json', 'w').write('garbage')",
        "open('../error.json', 'w').write('[' * 100000)",
        "open('../error.json', 'w').write('[]')",
        """open('../error.json', 'w').write('{"kind": 1, "message": []}')""",
        """open('../error.json', 'w').write('{"message": "' + 'x' * 10**7 + '"}')""",
        """open('../error.json', 'w').write('{"message": "\\\\ud800"}')""",
    ],
)
def test_a_callable_has_failed_with_any_content_of_its_error_file(tmp_path: Path, code: str) -> None:
    def call() -> None:
        exec(f"import os; {code}; os._exit(3)")

    end = end_of(spec(tmp_path, call=call)).exit
    assert (end.kind, end.code) == ("exception", 3)
    assert len(msgspec.json.encode(end)) < 10_000


def test_a_callables_error_is_cut_to_the_length_that_a_record_takes(tmp_path: Path) -> None:
    def call() -> None:
        import json
        import os

        text = "\N{PILE OF POO}" * 50_000
        left = {"kind": "no such kind", "message": text, "exception": text, "traceback": text, "code": "x"}
        with open("../error.json", "w") as file:
            json.dump(left, file, ensure_ascii=False)
        os._exit(1)

    end = end_of(spec(tmp_path, call=call)).exit
    assert (end.kind, end.code) == ("exception", 1)
    assert len(msgspec.json.encode(end)) < 150_000
    assert "left out" in end.message


@pytest.mark.parametrize("content", ["garbage", "[" * 5000])
def test_a_callables_process_may_leave_anything_as_its_result(tmp_path: Path, content: str) -> None:
    def call() -> None:
        import os

        with open("../result.json", "w") as file:
            file.write(content)
        os._exit(0)

    end = end_of(spec(tmp_path, call=call))
    assert end.result is not None
    assert (end.exit.kind, end.result.encoding) == ("success", "bytes")


def test_a_command_has_one_place_for_its_result(tmp_path: Path) -> None:
    assert end_of(sh(tmp_path, "echo garbage > ../result.json; echo garbage > ../result.pickle")).result is None


def test_a_program_whose_name_is_a_megabyte_is_the_jobs_failure(tmp_path: Path) -> None:
    end = end_of(spec(tmp_path, ["x" * 1_200_000])).exit
    assert (end.kind, end.code) == ("exited", 126)
    assert "cannot be executed: File name too long" in end.message
    assert len(end.message) < 3_000


@pytest.mark.parametrize("command", [["no\0program"], ["true", "a\0b"], ["\ud800"]])
def test_a_command_that_no_system_takes_is_the_jobs_failure(tmp_path: Path, command: list[str]) -> None:
    end = end_of(spec(tmp_path, command)).exit
    assert (end.kind, end.code) == ("exited", 126)
    assert "cannot be executed: Invalid argument" in end.message


@pytest.mark.parametrize(
    "script",
    [
        'rm -rf "$FRAY_TASK_DIR"; echo lost',
        "rm -rf $FRAY_TASK_DIR/log; echo lost",
        "mkdir there; mv ../log gone; ln -s $PWD/there ../log; rm -rf gone; echo lost",
        "mkfifo ../log/00000001.part; echo lost",
    ],
)
@pytest.mark.parametrize("after", ["", "; sleep 600"])
def test_a_task_that_changes_its_own_log_has_failed_and_its_host_has_not(
    tmp_path: Path, script: str, after: str
) -> None:
    end = end_of(sh(tmp_path / "task", script + after)).exit
    assert end.kind == "exited"
    assert end.message.startswith("the task changed its own log")
    assert not [*tmp_path.glob("task/work/there/*")]


def test_a_file_of_the_task_is_read_as_a_strangers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    for name in ("fifo", "folder", "link"):
        with pytest.raises(OSError, match="not a file"):
            TaskFile(tmp_path / name, 5).read_bytes()
    assert TaskFile(tmp_path / "file", 5).read_bytes() == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        TaskFile(tmp_path / "file", 4).read_bytes()


# --- the fate of its runner


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent gives the runner little time."""
    monkeypatch.setattr(process_task, "RUNNER_TIMEOUT", 0.2)


STUCK_ENDS: list[tuple[str, Callable[[ProcessTask], None]]] = [
    ("stopped", lambda task: task.stop(0.1, "stopped")),
    ("preempted", lambda task: task.stop(0.0, "preempted")),
    ("stopped", lambda task: task.kill()),
]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("kind", "end"), STUCK_ENDS)
async def test_a_stop_works_when_the_runner_is_frozen(
    tmp_path: Path, kind: str, end: Callable[[ProcessTask], None]
) -> None:
    task = await started(sh(tmp_path, STUBBORN))
    pids = await pids_in(tmp_path / "work/pids", 4)
    os.kill(task.runner_pid, signal.SIGSTOP)
    end(task)
    told = (await ended(task)).exit
    assert told.kind == kind
    assert "its runner did not answer" in told.message
    assert not any(map(is_alive, pids))


@pytest.mark.usefixtures("soon")
async def test_a_round_of_kills_that_fails_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rounds = force_kill.descendants, 0

    def descendants(pid: int) -> list[int]:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise OSError("Too many open files")
        return real(pid)

    monkeypatch.setattr(force_kill, "descendants", descendants)

    task = await started(sh(tmp_path, "sleep 60"))
    os.kill(task.runner_pid, signal.SIGSTOP)
    task.kill()
    assert (await ended(task)).exit.kind == "stopped"


@pytest.mark.usefixtures("soon")
async def test_a_timeout_works_when_the_runner_is_frozen(tmp_path: Path) -> None:
    task = await started(sh(tmp_path, "sleep 60", timeout=0.5, grace=0.1))
    os.kill(task.runner_pid, signal.SIGSTOP)
    assert (await ended(task)).exit.kind == "timeout"


@pytest.mark.usefixtures("soon")
async def test_a_deadline_works_when_the_runner_is_frozen(tmp_path: Path) -> None:
    task = await started(sh(tmp_path, "sleep 60"))
    os.kill(task.runner_pid, signal.SIGSTOP)
    task.set_deadline(boottime() - 60)
    task.set_deadline(boottime() + 60)
    assert (await ended(task)).exit.kind == "preempted"


@pytest.mark.usefixtures("soon")
async def test_a_log_that_was_begun_is_kept_when_the_agent_ends_the_task_itself(tmp_path: Path) -> None:
    task = await ProcessTask.start(sh(tmp_path, "echo something; sleep 60"), boottime() + FAR, None)
    await eventually(lambda: (tmp_path / "log/00000001.part").exists())
    os.kill(task.runner_pid, signal.SIGSTOP)
    task.stop(0.0, "stopped")
    end, chunks = (await task.exit, [file.read_bytes() async for _, file in task.chunks()])
    assert (end.exit.kind, end.exit.log_chunks, len(chunks)) == ("stopped", 1, 1)


@asynccontextmanager
async def with_runner(says: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    """A runner that is frozen from the start, or a process that sends other messages than a runner."""

    if says:
        code = f"import sys, time; sys.stdout.write({says}); sys.stdout.flush(); time.sleep(1000)"
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        runner = await asyncio.create_subprocess_exec(sys.executable, "-c", code, **pipes)  # type: ignore[arg-type]
    else:
        runner = await start_runner(None)
        os.kill(runner.pid, signal.SIGSTOP)
    yield runner
    assert not is_alive(runner.pid)


@pytest.mark.parametrize(
    "says",
    [
        "'garbage\\n'",
        "'[]\\n'",
        "'[' * 5000 + '\\n'",
        "'x' * 3_000_000 + '\\n'",
        """'{"event": "exit", "exit": {"kind": 1}}\\n'""",
        """'{"event": "usage", "usage": 1}\\n'""",
        """'{"event": "started"}\\n'""",
    ],
)
async def test_a_runner_that_is_not_understood_is_ended_and_its_host_blamed(tmp_path: Path, says: str) -> None:
    async with with_runner(says) as runner:
        task = await ProcessTask.start(sh(tmp_path, "sleep 60"), boottime() + FAR, None, runner)
        end = await task.exit
        await task.wait()
        assert end.exit.kind == "host-failed"
        assert [number async for number, _ in task.chunks()] == []


@pytest.mark.usefixtures("soon")
async def test_a_runner_that_does_not_start_the_task_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_task, "START_TIMEOUT", 0.2)

    async with with_runner() as runner:
        with pytest.raises(StartFailed, match="did not start within"):
            await ProcessTask.start(sh(tmp_path, "sleep 60"), boottime() + FAR, None, runner)


@pytest.mark.usefixtures("soon")
async def test_a_start_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async with with_runner() as runner:
        what = sh(tmp_path / "task", "sleep 60")
        starting = asyncio.create_task(ProcessTask.start(what, boottime() + FAR, None, runner))
        await eventually(what.directory.exists)
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
