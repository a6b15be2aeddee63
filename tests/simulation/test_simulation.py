"""A share of each simulation, the same seeds each time, in processes of their own with a fixed order of sets."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from tests.simulation.campaign import failed_once
from tests.simulation.stage import Stage
from tests.simulation.strength import WORLDS
from tests.support.scripts import run_python

JOBS, ACTORS, QUEUES = "tests.simulation", "tests.simulation.actors", "tests.simulation.queues"
GANGS, MACHINES = "tests.simulation.gangs", "tests.simulation.machines"


@pytest.fixture(autouse=True)
def _fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation need not start itself again for it."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def simulate(*arguments: str, module: str = JOBS) -> subprocess.CompletedProcess[str]:
    return run_python("-m", module, *arguments)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("module", "first", "seeds"),
    [
        (JOBS, 12, 1),
        (ACTORS, 3, 1),
        pytest.param(GANGS, 1, 4, marks=pytest.mark.slow),
        (QUEUES, 1, 2),
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
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("module", "made"), list(zip((JOBS, ACTORS, GANGS, QUEUES, MACHINES), WORLDS, strict=True)))
def test_a_seed_that_once_failed_breaks_no_invariant(module: str, made: type[Stage]) -> None:
    for seed in failed_once(made.kind):
        run = simulate("--seed", str(seed), module=module)
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
    run = simulate("--seed", "2" if module == QUEUES else "1", "--variant", variant, module=module)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"what happened to .*:\n( .*\n)+", run.stdout)
    story = run.stdout.partition("\n")[2]
    replay = shlex.split(story.partition("replay with: ")[2].partition("\n")[0])
    again = run_python(*replay[1:])
    assert again.returncode == 1
    assert story in again.stdout
    before, _, _ = again.stdout.partition(story)
    assert len(before.splitlines()) > len(story.splitlines()), "everything that happened"
