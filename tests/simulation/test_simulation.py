"""A share of the simulation with fresh seeds, in processes of their own with a fixed order of sets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_fresh_seeds_and_those_that_once_failed_break_no_invariant() -> None:
    run = simulate("--seconds", "45")
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_same_seed_gives_the_same_history_byte_for_byte() -> None:
    first, second = (simulate("--seed", "12", "--replay") for _ in range(2))
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout == second.stdout
    assert len(first.stdout) > 50_000


def test_another_seed_gives_another_history() -> None:
    digests = {re.findall("digest (.*)", simulate("--seed", seed).stdout)[0] for seed in ("1", "2")}
    assert len(digests) == 2
