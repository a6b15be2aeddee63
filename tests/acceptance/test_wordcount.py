"""The word count: real files, four real workers, two real SIGKILLs, and the same words as without them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = Path(__file__).parents[2] / "examples" / "wordcount" / "main.py"


@pytest.mark.slow
def test_two_of_four_workers_are_killed_and_the_result_is_the_sequential_one(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, str(MAIN)], env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("killed worker ") == 2
    assert re.search(r"\d+ words in \d\d files, in .* s, by 4 workers of which 2 died", ran.stdout)
    assert "the same as counted without workers" in ran.stdout
    assert list(tmp_path.iterdir()) == []
