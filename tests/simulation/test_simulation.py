"""A share of the simulation, with other seeds each time, in processes of their own with a fixed order of sets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


QUICK = [
    "unconditional_claim",
    "entry_deleted_at_the_claim",
    "commit_discarded_on_any_rejection",
    "commit_before_outputs",
    "budgets_swapped",
    "mail_that_overwrites",
    "expiry_by_wall_clock",
    "requeue_before_death",
    "child_before_its_index_entry",
    "unknown_fields_are_dropped",
]
"""Broken variants that the first seeds catch."""


def simulate(*arguments: str, module: str = "tests.simulation") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
def test_fresh_seeds_and_those_that_once_failed_break_no_invariant() -> None:
    """Other seeds each time; a failing one tells the command that replays it."""
    run = simulate("--seconds", "45", "--processes", "1")
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_seed_gives_one_history_byte_for_byte_and_another_seed_another() -> None:
    first, second, other = (simulate("--seed", seed, "--replay") for seed in ("12", "12", "8"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout == second.stdout
    assert len(first.stdout) > 50_000
    assert re.findall("digest (.*)", first.stdout) != re.findall("digest (.*)", other.stdout)


def test_broken_variants_of_the_code_are_caught() -> None:
    run = simulate(*QUICK, module="tests.simulation.strength")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("\n") == len(QUICK) + 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_broken_variant_is_caught() -> None:
    run = simulate(module="tests.simulation.strength")
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_broken_invariant_is_told_with_its_history_and_how_to_replay_it() -> None:
    run = simulate("--seed", "0", "--variant", "budgets_swapped")
    assert run.returncode == 1
    assert "failure spends the failure budget: " in run.stdout
    assert "replay with: python -m tests.simulation --seed 0 --replay" in run.stdout
    assert re.search(r"what happened to .*:\n( .*\n)+", run.stdout)
