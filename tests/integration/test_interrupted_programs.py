"""Ctrl-C and the first failure of a wait: a program says which of its jobs go on, and how to stop them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fray.cluster import JobRequest, LocalCluster, StorageCluster
from fray.errors import JobFailed
from tests.support.left_behind import started
from tests.support.shell import Shell
from tests.support.terminal import Terminal

PROGRAM = """
import sys
from fray.cluster import Entrypoint, JobRequest, LocalCluster, StorageCluster

def train():
    cluster = StorageCluster(sys.argv[1]) if len(sys.argv) > 1 else LocalCluster()
    jobs = [JobRequest(f"job-{number}", Entrypoint.from_binary("sleep", ["600"])) for number in range(%d)]
    cluster.launch_many(jobs)
    cluster.run(wait)

async def wait(core):  # the program's main thread is inside Fray by now
    print("waits", flush=True)
    await core.clock.sleep(600)

train()
"""


def interrupted(tmp_path: Path, jobs: int, *root: str, **variables: str) -> str:
    """What the program prints on stderr if Ctrl-C ends it during its wait."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM % jobs)
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environ = {**os.environ, "FRAY_DEBUG": "", **variables}
    process = started(subprocess.Popen([sys.executable, str(script), *root], env=environ, cwd=tmp_path, **options))
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    return str(process.communicate(timeout=200)[1])


@pytest.mark.parametrize(("jobs", "by"), [(1, "job-0-"), (2, "job-0-"), (11, "--namespace driver-")])
def test_ctrl_c_names_the_command_that_stops_what_goes_on(empty: Shell, tmp_path: Path, jobs: int, by: str) -> None:
    said = interrupted(tmp_path, jobs, str(empty.root), FRAY_CLUSTER_SPEC="")
    count = "1 job that this program launched goes on" if jobs == 1 else f"{jobs} jobs that this program launched go on"
    told = re.search(rf"\nfray: {count}; `fray (stop [^`]*)` stops .*\n$", said)
    assert told is not None, said
    assert by in told[1]
    root = empty.root.as_uri()
    assert f"--root {root} " in told[1]
    empty(*shlex.split(told[1]))
    assert [job["status"] for job in empty.json("ps", "--all")] == ["stopped"] * jobs


def test_ctrl_c_shows_the_programs_own_frames(tmp_path: Path) -> None:
    said = interrupted(tmp_path, 1)
    files = re.findall(r'File "([^"]+)", line \d+, in (\S+)', said)
    assert [Path(file).name for file, _ in files[:2]] == ["program.py"] * 2
    assert [name for _, name in files[:2]] == ["<module>", "train"]
    assert len(files) == 3
    assert re.search(r"\nKeyboardInterrupt\nfray: \d+ frames inside Fray left out; FRAY_DEBUG=1 shows all\n", said)
    assert said.endswith("fray: 1 job of this program ends with it\n")
    everything = re.findall(r'File "', interrupted(tmp_path, 1, FRAY_DEBUG="1"))
    assert len(everything) > 3


def test_on_a_terminal_ctrl_c_asks_whether_to_stop(empty: Shell, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM % 2)
    environ = {**os.environ, "FRAY_CLUSTER_SPEC": str(empty.root)}
    with Terminal(tmp_path, environ) as terminal:
        for answer, status in (("n", "pending"), ("y", "stopped")):
            terminal.type(f"{sys.executable} program.py {empty.root}\n")
            terminal.until(r"\nwaits\n")  # not the path of the interpreter
            terminal.type("\x03")
            terminal.until(r"2 jobs that this program launched go on; `fray stop job-0-\S+ job-1-\S+` stops them\n")
            terminal.until(r"stop now\? \[y/N\] ")
            terminal.run(answer)
            assert {job["status"] for job in empty.json("ps", "--all")} >= {status}
    assert sorted(job["status"] for job in empty.json("ps", "--all")) == ["pending"] * 2 + ["stopped"] * 2


def test_the_first_failure_of_a_wait_says_how_many_jobs_go_on(empty: Shell) -> None:
    ended = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            raise ValueError("the first")
        ended.wait()

    with LocalCluster(use_processes=False) as private:
        jobs = private.launch_many([JobRequest(f"job-{number}", partial(work, number)) for number in range(3)])
        with pytest.raises(JobFailed, match="the first") as failed:
            private.wait(jobs, raise_on_failure=True)
        ended.set()
    stops = "`cluster.terminate(job)` stops one, and they end with this program"
    assert failed.value.__notes__ == [f"fray: 2 other jobs of this wait go on; {stops}"]

    shared = StorageCluster(str(empty.root))
    jobs = shared.launch_many([JobRequest("nobody-runs-it", int) for _ in range(2)])
    shared.terminate(jobs[0])
    with pytest.raises(JobFailed, match="stopped") as failed:
        shared.wait(jobs, raise_on_failure=True)
    (told,) = failed.value.__notes__
    assert told.startswith("fray: 1 other job of this wait goes on; `fray stop ")
    empty(*shlex.split(told.split("`")[1])[1:])
    assert shared.wait(jobs[1]).status == "stopped"
    with pytest.raises(JobFailed) as failed:
        shared.wait(jobs, raise_on_failure=True)
    assert not hasattr(failed.value, "__notes__")
