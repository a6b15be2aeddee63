"""`fray run` without a root: a private cluster that comes and goes with the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def fray_run(place: Path, *words: str, stdin: int = subprocess.DEVNULL, **environ: str) -> subprocess.Popen[str]:
    """Run the command with its temporary files in `place`."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    pipes: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    program = [sys.executable, "-m", "fray", "run", *words]
    return subprocess.Popen(program, env={**outside, "TMPDIR": str(place), **environ}, **pipes)


def left(place: Path) -> list[Path]:
    """Files, and folders of private clusters, that are still in the temporary folder."""
    return [path for path in place.rglob("*") if path.is_file() or path.parent.name == "agents"] + [
        path for path in place.iterdir() if path.name != f"fray-{os.getuid()}"
    ]


@pytest.mark.parametrize("environ", [{}, pytest.param({"FRAY_CLUSTER_SPEC": "local"}, marks=pytest.mark.slow)])
def test_it_ends_like_the_command_and_leaves_nothing(tmp_path: Path, environ: dict[str, Any]) -> None:
    script = "echo $PWD; echo err >&2; test -d ${FRAY_CLUSTER_SPEC#file://}; echo $?; exit 7"
    ran = fray_run(tmp_path, "--simulate", "--gpus", "8", "--cpu", "5000", "--", "sh", "-c", script, **environ)
    out, err = ran.communicate(timeout=200)
    assert (out, ran.returncode) == (f"{os.getcwd()}\n0\n", 7)
    *why, simulated, _, said, _ = err.splitlines()
    assert [line.startswith("fray: FRAY_CLUSTER_SPEC is not set") for line in why] == ([] if environ else [True])
    assert simulated.startswith("fray: simulated on this machine: gpu: 8 wanted, none here; cpu: 5000 cores wanted, ")
    assert said == "err"
    assert left(tmp_path) == []


def test_a_job_that_this_machine_cannot_run_is_refused(tmp_path: Path) -> None:
    ran = fray_run(tmp_path, "--gpus", "h100:8", "--memory", "900TB", "--", "true", FRAY_CLUSTER_SPECS="gs://team/x")
    out, err = ran.communicate(timeout=200)
    why, refused = err.splitlines()
    assert (out, ran.returncode) == ("", 1)
    assert "FRAY_CLUSTER_SPECS is set, which Fray does not read" in why
    assert refused.startswith("fray: job: 'true' is not accepted; this machine cannot run it (gpu-h100: 8 wanted, none")
    assert "--simulate" in refused
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_lets_the_command_come_to_its_end(tmp_path: Path, number: int) -> None:
    ran = fray_run(tmp_path, "--", "sh", "-c", 'trap "echo bye; exit 0" TERM; echo $$; sleep 1000 & wait')
    assert ran.stdout is not None
    pid = int(ran.stdout.readline())
    ran.send_signal(number)
    out, err = ran.communicate(timeout=200)
    assert (out, ran.returncode) == ("bye\n", 130), err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert left(tmp_path) == []


def test_standard_input_reaches_the_job(tmp_path: Path) -> None:
    ran = fray_run(tmp_path, "--", "cat", stdin=subprocess.PIPE)
    assert ran.communicate("hello\n", timeout=200)[0] == "hello\n"


def test_a_private_cluster_cannot_be_left_running(tmp_path: Path) -> None:
    ran = fray_run(tmp_path, "--detach", "true")
    _, err = ran.communicate(timeout=200)
    assert ran.returncode == 2
    assert "give --root" in err
