"""The cost of a start: imports, the command's help, an idle agent, and the start of a task."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import PYTHON, agents, arguments, report, scratch, spread

from fray import Entrypoint, JobRequest, StorageCluster

CLOCK = "import time; print(time.clock_gettime(time.CLOCK_REALTIME))"


def seconds(command: Sequence[str]) -> float:
    """Seconds from the start of a command to its end."""
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def interpreters(count: int) -> dict[str, Any]:
    """Measure new processes in turns: an empty one, imports, and the command's help."""
    commands = {
        "python": [PYTHON, "-c", "pass"],
        "import_fray": [PYTHON, "-c", "import fray"],
        "import_fray_cluster": [PYTHON, "-c", "import fray.cluster"],
        "fray_help": [PYTHON, "-m", "fray", "--help"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(count):
        for name, command in commands.items():
            taken[name].append(seconds(command))
    bare = statistics.median(taken["python"])
    return {
        **{name: spread(values) for name, values in taken.items()},
        "import_fray_over_python_ms": round((statistics.median(taken["import_fray"]) - bare) * 1000, 1),
    }


def command_start(cluster: StorageCluster) -> float:
    """Seconds from the claim, by the job's record, to the first line of a command's program."""
    job = cluster.launch(JobRequest("command", Entrypoint.from_binary(PYTHON, ["-c", CLOCK])))
    claimed = cluster.wait(job, raise_on_failure=True).start_time
    (line,) = cluster.logs(job)
    return float(line.data) - _known(claimed)


def callable_start(cluster: StorageCluster) -> float:
    """Seconds from the claim to the first line of a callable."""
    job = cluster.launch(JobRequest("callable", Entrypoint.from_callable(time.time)))
    began = cluster.result(job)
    return float(began) - _known(cluster.poll(job).start_time)


def _known(moment: float | None) -> float:
    assert moment is not None, "a job that ended was started"
    return moment


def resident_mb(pid: int) -> float:
    """Resident megabytes of a process, including shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def run(directory: Path, quick: bool) -> dict[str, Any]:
    count = 3 if quick else 25
    root = directory / "root"
    with agents(root) as (agent,), StorageCluster(str(root)) as cluster:
        command = [sys.executable, "-m", "fray", "agent", "--root", str(root), "--pool", "idle", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(directory)}) as idle:
            assert idle.stdout is not None
            idle.stdout.readline()
            time.sleep(0.2 if quick else 5)
            idle_mb = resident_mb(idle.pid)
            idle.terminate()
        command_start(cluster)
        starts = {
            "claim_to_command": spread([command_start(cluster) for _ in range(count)]),
            "claim_to_callable": spread([callable_start(cluster) for _ in range(count)]),
        }
        used_mb = resident_mb(agent.pid)
    memory = {"idle_agent_mb": round(idle_mb, 1), "agent_after_jobs_mb": round(used_mb, 1)}
    return {**interpreters(count), **memory, **starts, "goals": GOALS}


GOALS = {"import_fray_ms": 150, "idle_agent_mb": 70, "claim_to_first_line_ms": 150}

if __name__ == "__main__":
    options = arguments(__doc__)
    with scratch() as place:
        report("startup", run(place, options.quick))
