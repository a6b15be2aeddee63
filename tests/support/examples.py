"""Examples run as users run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

ONE_PROGRAM_SAYS = ["a gang of 2 has drawn 40000 points", "with 4 tasks it is 120000; pi is about 3.14"]
"""The same on every backend: its points are drawn from fixed seeds."""


def run_example(name: str, *options: str, **environment: str) -> list[str]:
    """The lines that an example prints. environment: its variables beside this process's own, but for Fray's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_")}
    command = [sys.executable, str(EXAMPLES / name / "main.py"), *options]
    ran = subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()
