"""Examples run as users run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

ONE_PROGRAM_SAYS = ["a gang of 2 has drawn 40000 points", "with 4 tasks it is 120000; pi is about 3.14"]
"""The output on every backend, because the points are drawn from fixed seeds."""

LOCAL_DEVELOPMENT_SAYS = ["Response to: Hello Response to: World", "1 2", "2 4 6 8 10", "6"]

PROJECT_REPORT = """\
word    reviews      stars
------  ---------  -------
blade   four           2.8
handl   three          3.0
sharp   three          4.7
"""
"""The project's output for the three most frequent words."""


def project_wheels(folder: Path) -> Path:
    """The project's packages, so that agents need no network; pip fetches them like the packages of the tests."""
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(folder)]
    subprocess.run([*fetch, "--requirement", str(EXAMPLES / "project" / "requirements.txt")], check=True, timeout=200)
    return folder


def run_example(name: str, *options: str, **environment: str) -> list[str]:
    """Run an example.

    Return the lines that it prints. environment: variables to add to this process's, without `FRAY_*`.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    command = [sys.executable, str(EXAMPLES / name / "main.py"), *options]
    ran = subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()
