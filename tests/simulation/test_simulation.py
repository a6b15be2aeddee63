"""A share of each simulation, the same seeds each time, in processes of their own with a fixed order of sets."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.campaign import failed_once
from tests.simulation.gangs import GangWorld
from tests.simulation.stage import Stage
from tests.simulation.strength import VARIANTS, WORLDS

ROOT = Path(__file__).parents[2]
JOBS, ACTORS, QUEUES = "tests.simulation", "tests.simulation.actors", "tests.simulation.queues"
GANGS, MACHINES = "tests.simulation.gangs", "tests.simulation.machines"
STRENGTH = "tests.simulation.strength"

QUICK: dict[str, tuple[str, ...]] = {
    "unconditional_claim": (
        "every body succeeds the one before",
        "unknown fields survive",
        "attempts only grow",
        "every drop is dealt with",
    ),
    "entry_deleted_at_the_claim": ("no job is ever unreachable",),
    "commit_before_outputs": ("outputs come before the commit",),
    "budgets_swapped": ("failure spends the failure budget", "preemption never spends the failure budget"),
    "requeue_before_death": ("one copy at a time",),
    "child_before_its_index_entry": ("a child is indexed before it exists",),
    "unknown_fields_are_dropped": ("unknown fields survive",),
    "polling_without_back_off": ("an idle cluster asks for what is stated",),
    "fences_without_state": ("an acknowledged call is never lost",),
    "replies_before_checkpoints": ("an acknowledged call is never lost",),
    "takeover_without_waiting": ("nobody takes what its holder trusts",),
    "nothing_is_collected": ("what is finished is collected",),
    "an_empty_queue_is_listed": ("an empty queue is polled by conditional reads",),
}
"""Broken variants that the first seeds catch, and by which invariant: the first one that a seed comes to."""


def simulate(*arguments: str, module: str = JOBS) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-m", module, *arguments])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("module", "first", "seeds"),
    [
        (JOBS, 12, 1),
        (ACTORS, 3, 1),
        pytest.param(GANGS, 1, 4, marks=pytest.mark.slow),
        (QUEUES, 1, 6),
        pytest.param(MACHINES, 1, 1, marks=pytest.mark.slow),
    ],
)
def test_some_seeds_break_no_invariant(module: str, first: int, seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What was run is printed, whatever came of it; a failing seed tells its replay. `make test-long` runs more."""
    run = simulate("--first", str(first), "--seeds", str(seeds), module=module)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    with capsys.disabled():
        print(f"\nsimulation of {lines[0]}: {lines[-1]}", file=sys.stderr)


each_module = pytest.mark.parametrize("module", [JOBS, ACTORS, GANGS, QUEUES, MACHINES])


@pytest.mark.slow
@each_module
def test_a_seed_alone_does_the_same_as_in_a_process_that_ran_others_before(module: str) -> None:
    run = simulate("--first", "1", "--seeds", "2", module=module)
    last, digest = re.findall(r"the last: seed (\d+), digest (\w+)", run.stdout)[0]
    assert f"digest {digest}" in simulate("--seed", last, module=module).stdout


@pytest.mark.slow
@each_module
def test_a_seed_gives_one_history_byte_for_byte_and_another_seed_another(module: str) -> None:
    seed = "1004" if module == GANGS else "12"
    first, second = (simulate("--seed", seed, "--replay", module=module) for _ in range(2))
    other = simulate("--seed", "8", module=module)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout == second.stdout
    assert len(first.stdout) > 10_000
    assert re.findall("digest (.*)", first.stdout) != re.findall("digest (.*)", other.stdout)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_broken_variants_of_the_code_are_caught() -> None:
    run = simulate(*QUICK, module=STRENGTH)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = (line.strip("| ").split(" | ") for line in run.stdout.splitlines() if line.count("|") == 4)
    caught = {row[0].replace(" ", "_"): row[1] for row in rows}
    assert {name: caught.get(name) for name in QUICK if caught.get(name) not in QUICK[name]} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_broken_rules_of_gangs_to_which_hardly_any_seed_comes_turn_their_tests_red() -> None:
    run = simulate(*(name for name, variant in GangWorld.variants.items() if variant.test), module=STRENGTH)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_twelfth_other_variant_is_caught() -> None:
    others = [name for name, variant in VARIANTS.items() if name not in QUICK and not variant.test]
    run = simulate(*others[::12], module=STRENGTH)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("module", "made"), list(zip((JOBS, ACTORS, GANGS, QUEUES, MACHINES), WORLDS, strict=True)))
def test_a_seed_that_once_failed_breaks_no_invariant(module: str, made: type[Stage]) -> None:
    for seed in failed_once(made.kind):
        run = simulate("--seed", str(seed), module=module)
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_every_broken_variant_is_caught() -> None:
    run = simulate(module=STRENGTH)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("module", "variant"),
    [
        pytest.param(JOBS, "budgets_swapped", marks=pytest.mark.slow),
        pytest.param(ACTORS, "fences_without_state", marks=pytest.mark.slow),
        (QUEUES, "nothing_is_collected"),
    ],
)
def test_a_broken_invariant_is_told_with_its_history_and_a_command_that_replays_it(module: str, variant: str) -> None:
    run = simulate("--seed", "1", "--variant", variant, module=module)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"what happened to .*:\n( .*\n)+", run.stdout)
    story = run.stdout.partition("\n")[2]
    replay = shlex.split(story.partition("replay with: ")[2].partition("\n")[0])
    again = _run([sys.executable, *replay[1:]])
    assert again.returncode == 1
    assert story in again.stdout
    assert len(again.stdout) > 2 * len(run.stdout), "everything that happened"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
