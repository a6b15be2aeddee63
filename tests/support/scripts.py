"""Runs modules and scripts of this repository with the interpreter of the tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository's root, and return what it printed."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
