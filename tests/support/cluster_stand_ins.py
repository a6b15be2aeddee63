"""Stand-ins for the programs of Slurm and Kubernetes in tests; they keep their state in files of one folder."""

from __future__ import annotations

import sys
from pathlib import Path

_SLURM = """#!{python}
import os, pathlib, sys
jobs = pathlib.Path({folder!r})
options = dict(zip(sys.argv[1::1], sys.argv[2::1]))
name = options.get({name!r})
"""

_SBATCH = """
assert options["--wrap"].startswith("exec fray agent --root "), sys.argv
assert options["--dependency"] == "singleton"
if (refusal := jobs / "refusal").exists():
    sys.exit(refusal.read_text())
try:
    (jobs / f"{name}~1").open("x").write("RUNNING")
except FileExistsError:
    (jobs / f"{name}~2").write_text("PENDING")
print(1)
"""

_SQUEUE = """
found = [job for job in sorted(jobs.glob("*~*")) if name in (None, job.name.partition("~")[0])]
for job in found:
    print(job.name if options["--format"] == "%i" else f"{job.name.partition('~')[0]} {job.read_text()}")
if name is None:
    print("somebodys-job RUNNING")
"""

_SCANCEL = """
for job in jobs.glob(f"{name}~*"):
    job.unlink(missing_ok=True)
"""

_KUBECTL = """#!{python}
import json, pathlib, sys
pods = pathlib.Path({folder!r})
if sys.argv[1] == "apply":
    import yaml

    pod = yaml.safe_load(sys.stdin)
    assert pod["kind"] == "Pod"
    [container] = pod["spec"]["containers"]
    assert container["command"][2].startswith("exec fray agent --root "), container
    path = pods / pod["metadata"]["name"]
    try:
        path.open("x").write(json.dumps(pod["metadata"]["labels"]) + " Running")
    except FileExistsError:
        pass
elif sys.argv[1] == "get":
    wanted = dict(part.split("=") for part in sys.argv[sys.argv.index("--selector") + 1].split(","))
    for path in sorted(pods.iterdir()):
        labels, _, phase = path.read_text().rpartition(" ")
        if wanted.items() <= json.loads(labels).items():
            print(path.name, phase, "<none>")
else:
    assert sys.argv[1] == "delete" and "--ignore-not-found" in sys.argv
    (pods / sys.argv[3]).unlink(missing_ok=True)
"""


def install_slurm(programs: Path, jobs: Path) -> None:
    """Write sbatch, squeue and scancel into a folder of programs."""
    for program, option, body in (
        ("sbatch", "--job-name", _SBATCH),
        ("squeue", "--name", _SQUEUE),
        ("scancel", "--name", _SCANCEL),
    ):
        _write(programs / program, _SLURM.format(python=sys.executable, folder=str(jobs), name=option) + body)


def install_kubectl(programs: Path, pods: Path) -> None:
    """Write kubectl into a folder of programs."""
    _write(programs / "kubectl", _KUBECTL.format(python=sys.executable, folder=str(pods)))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
