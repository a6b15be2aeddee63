"""Deliberately broken variants of the code are caught by the simulations' invariants, or by the test that they name."""

import subprocess

import pytest

from tests.simulation.gangs import GangWorld
from tests.simulation.strength import VARIANTS
from tests.support.scripts import run_python

QUICK: dict[str, tuple[str, ...]] = {
    "unconditional_claim": (
        "every body succeeds the one before",
        "unknown fields survive",
        "attempts only grow",
        "nothing leaves a terminal state",
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


def catch(*variants: str) -> subprocess.CompletedProcess[str]:
    """Run the simulations against these variants, or against all of them if none is given."""
    return run_python("-m", "tests.simulation.strength", *variants)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_broken_variants_of_the_code_are_caught() -> None:
    run = catch(*QUICK)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = (line.strip("| ").split(" | ") for line in run.stdout.splitlines() if line.count("|") == 4)
    caught = {row[0].replace(" ", "_"): row[1] for row in rows}
    assert {name: caught.get(name) for name in QUICK if caught.get(name) not in QUICK[name]} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_broken_rules_of_gangs_to_which_hardly_any_seed_comes_turn_their_tests_red() -> None:
    run = catch(*(name for name, variant in GangWorld.variants.items() if variant.test))
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_twelfth_other_variant_is_caught() -> None:
    others = [name for name, variant in VARIANTS.items() if name not in QUICK and not variant.test]
    run = catch(*others[::12])
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_every_broken_variant_is_caught() -> None:
    run = catch()
    assert run.returncode == 0, run.stdout + run.stderr
