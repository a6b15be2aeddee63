"""The processor time of `fray ps` on local files and on emulators of S3 and GCS.

For comparison, the same run measures the import of the libraries that others use for these buckets.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import PYTHON, arguments, report, say, scratch
from tests.support import servers

JOBS = 20
"""Jobs that wait on each root: `fray ps` reads the record of each."""

GOALS = {"ps_s3_cpu_s": 0.45, "ps_gcs_cpu_s": 0.45}


def cpu_seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    """Processor seconds of a command, as the system counts them."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


@contextmanager
def roots(folder: Path) -> Iterator[dict[str, tuple[str, dict[str, str]]]]:
    """A cluster with waiting jobs on each kind of storage: its root, and the environment variables for it."""
    # As in an installation, compiled modules are kept, whatever this shell's environment says.
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    plain["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    with servers.moto() as s3, servers.gcs_emulator() as gcs:
        found = {
            "local": (str(folder / "root"), plain),
            "s3": (f"{s3.root}/bench", {**plain, **s3.environment}),
            "gcs": (f"{gcs.root}/bench", {**plain, **gcs.environment}),
        }
        spec = folder / "jobs.json"
        spec.write_text(json.dumps([{"name": "bench", "entrypoint": {"command": ["true"]}}] * JOBS))
        submit = [PYTHON, "-m", "fray", "submit", "--no-workspace", str(spec), "--root"]
        for root, environment in found.values():
            subprocess.run([*submit, root], env=environment, check=True, stdout=subprocess.DEVNULL)
        yield found


def run(folder: Path, quick: bool) -> dict[str, Any]:
    with roots(folder) as found:
        plain = found["local"][1]
        programs = {
            "python": ["-c", "pass"],
            "help": ["-m", "fray", "--help"],
            "import_s3fs": ["-c", "import s3fs"],
            "import_gcsfs": ["-c", "import gcsfs"],
        }
        commands = {name: ([PYTHON, *program], plain) for name, program in programs.items()}
        for kind, (root, environment) in found.items():
            commands[f"ps_{kind}"] = ([PYTHON, "-m", "fray", "ps", "--root", root], environment)
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(2 if quick else 21):
            for name, command in commands.items():
                taken[name].append(cpu_seconds(*command))
    figures = {f"{name}_cpu_s": round(statistics.median(seconds), 3) for name, seconds in taken.items()}
    for name, seconds in figures.items():
        say(f"{name}: {seconds}")
    local = figures["ps_local_cpu_s"]
    over = {f"{kind}_over_local": round(figures[f"ps_{kind}_cpu_s"] / local, 2) for kind in ("s3", "gcs")}
    return {**figures, **over, "samples": len(taken["python"]), "jobs": JOBS, "goals": GOALS}


if __name__ == "__main__":
    options = arguments(__doc__)
    with scratch() as place:
        report("cli", run(place, options.quick))
