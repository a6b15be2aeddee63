"""How each end of a task is reported, with real processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from fray_agents.tasks.task_handle import StartFailed, TaskSpec
from fray_runtime.directories import host_dir, try_lock
from fray_runtime.network import held_ports
from tests.support.tasks import (
    end_of,
    ended,
    lines_of,
    run,
    sh,
    spec,
    started,
)
from tests.support.waiting import eventually


def test_success_of_a_command(tmp_path: Path) -> None:
    end, log = asyncio.run(run(sh(tmp_path, "echo out; echo err >&2")))
    assert (end.exit.kind, end.exit.code, end.complete_before_stop, end.result) == ("success", 0, True, None)
    assert (lines_of(log), lines_of(log, "stderr")) == ([b"out"], [b"err"])
    assert end.exit.log_chunks == 1


def test_the_usage_of_a_short_task_is_known_too(tmp_path: Path) -> None:
    usage = end_of(sh(tmp_path, "head -c 2000000 /dev/urandom > file")).exit.usage
    assert usage is not None
    assert usage.disk >= 2_000_000
    assert usage.memory_peak > 500_000
    assert usage.cpu_seconds > 0


def test_a_tasks_ports_are_held_until_its_last_process_ends_and_the_task_does_not_inherit_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        with held_ports(["http"], random.Random()) as ports:
            held = ports.descriptors
            task = await started(sh(tmp_path, "ls -l /proc/self/fd > all; mv all fds; sleep 1000", held=held))
        lock = host_dir("ports") / str(ports.numbers["http"])
        assert try_lock(lock) is None
        await eventually(lambda: (tmp_path / "work/fds").exists())
        assert str(lock) not in (tmp_path / "work/fds").read_text()
        task.kill()
        await task.wait()
        free = try_lock(lock)
        assert free is not None
        os.close(free)

    asyncio.run(scenario())


def test_exit_code(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "exit 3")).exit
    assert (end.kind, end.code, end.message, end.log_chunks) == ("exited", 3, "exit code 3", 0)


def test_signal(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "kill -SEGV $$")).exit
    assert (end.kind, end.signal, end.message) == ("signalled", signal.SIGSEGV, "killed by SIGSEGV")


def test_a_sigkill_of_others_says_so_with_the_peak(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "echo loading >&2; kill -KILL $$")).exit
    assert (end.kind, end.signal) == ("signalled", signal.SIGKILL)
    assert "Fray did not send it, and memory does not seem to have run out (peak " in end.message
    assert end.message.endswith("its last words: loading")


def test_timeout(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "sleep 60", timeout=0.2)).exit
    assert (end.kind, end.message) == ("timeout", "ran longer than its timeout of 0.2 s (killed by SIGTERM)")


def test_out_of_memory_is_told_from_other_kills_by_the_kernel_counter(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 4\n")
    for name, script in (("one", f"echo oom_kill 5 > {counter}; kill -KILL $$"), ("two", "kill -KILL $$")):
        (tmp_path / name).mkdir()
        end = end_of(sh(tmp_path / name, script, oom_counter=counter)).exit
        assert end.kind == ("out-of-memory" if name == "one" else "signalled")
        assert "SIGKILL" in end.message


def test_a_program_that_does_not_exist_is_the_jobs_failure(tmp_path: Path) -> None:
    end = end_of(spec(tmp_path, ["no-such-program"])).exit
    assert (end.kind, end.code, end.log_chunks) == ("exited", 127, 0)
    assert "'no-such-program' not found on this host; install it" in end.message


@pytest.mark.parametrize("program", ["cd", "./run.sh --fast"])
def test_a_command_that_only_a_shell_understands_fails_with_a_remedy(tmp_path: Path, program: str) -> None:
    assert 'run ["sh", "-c", "..."]' in end_of(spec(tmp_path, [program])).exit.message


def test_a_program_that_is_not_executable_is_the_jobs_failure(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("text")
    (tmp_path / "task").mkdir()
    end = end_of(spec(tmp_path / "task", [str(program)])).exit
    assert (end.kind, end.code) == ("exited", 126)
    assert "cannot be executed: Permission denied" in end.message


def test_a_script_whose_interpreter_is_missing_says_so(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    (tmp_path / "task").mkdir()
    end = end_of(spec(tmp_path / "task", [str(program)])).exit
    assert (end.kind, end.code) == ("exited", 127)
    assert "interpreter" in end.message


def test_a_task_that_cannot_be_started_is_not_the_jobs_failure(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="no-such-folder"):
        end_of(sh(tmp_path, "true", cwd=str(tmp_path / "no-such-folder")))
    with pytest.raises(StartFailed, match="log"):
        end_of(sh(tmp_path, "true"))  # the directory is not fresh


def test_a_runner_that_cannot_go_on_ends_the_task_and_blames_the_host(tmp_path: Path) -> None:
    limit = "resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))"
    script = f"import os, resource, time; {limit}; print(1, flush=True); time.sleep(60)"
    end = end_of(spec(tmp_path, [sys.executable, "-c", script])).exit
    assert end.kind == "host-failed"
    assert "File too large" in end.message


def test_the_environment_has_exactly_the_given_variables(tmp_path: Path) -> None:
    only = TaskSpec(tmp_path, ["/usr/bin/env"], None, {"A": "1"}, None, 1.0)
    _, log = asyncio.run(run(only))
    assert sorted(lines_of(log)) == [
        b"A=1",
        b"FRAY_RESULT=" + bytes(tmp_path / "result"),
        b"FRAY_TASK_DIR=" + bytes(tmp_path),
    ]


@pytest.mark.parametrize(
    ("written", "encoding"), [('{"a": [1, 2.5]}', "json"), ("not json", "bytes"), ("NaN", "bytes")]
)
def test_a_command_may_leave_a_result(tmp_path: Path, written: str, encoding: str) -> None:
    end = end_of(sh(tmp_path, f"printf '%s' '{written}' > $FRAY_RESULT"))
    assert end.result is not None
    assert (end.result.encoding, end.result.size) == (encoding, len(written))
    assert end.result.path.read_text() == written


def test_a_result_of_a_command_that_is_too_large(tmp_path: Path) -> None:
    end = end_of(sh(tmp_path, "echo 12345678901 > $FRAY_RESULT", result_limit=10))
    assert (end.exit.kind, end.result) == ("too-large", None)
    assert "12 bytes" in end.exit.message
    assert "write it to storage" in end.exit.message


async def test_usage_is_sampled_while_running_and_totalled_at_the_end(tmp_path: Path) -> None:
    script = """
import time
data = bytearray(60_000_000)
open('file', 'wb').write(b'x' * 3_000_000)
while time.process_time() < 0.6: pass
time.sleep(600)
"""

    task = await started(spec(tmp_path, [sys.executable, "-c", script]))
    await eventually(lambda: task.usage and task.usage.memory > 60_000_000 and task.usage.cpu_seconds > 0.5)
    sampled = task.usage
    assert sampled is not None
    assert sampled.cpu_percent > 0
    assert sampled.disk >= 3_000_000
    task.kill()
    usage = (await ended(task)).exit.usage
    assert usage is not None
    assert usage.cpu_seconds >= sampled.cpu_seconds > 0
    assert usage.memory_peak > 60_000_000
    assert usage.disk >= 3_000_000
