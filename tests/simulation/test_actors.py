"""A share of the simulation of actors, with other seeds each time, and broken variants of the code that it catches."""

from __future__ import annotations

import pytest

from tests.simulation.test_simulation import simulate

MODULE = "tests.simulation.actors"
QUICK = {
    "callers_forget": "a caller never goes back",
    "fences_without_state": "an acknowledged call is never lost",
    "replies_before_checkpoints": "an acknowledged call is never lost",
    "actors_live_through_outages": "actors end with the trust in their lease",
    "restarts_are_forgotten": "no job is ever unreachable",
}
"""Broken variants that the first seeds catch, and by what."""


@pytest.mark.timeout(600)
def test_fresh_seeds_of_actors_break_no_invariant() -> None:
    """Other seeds each time; a failing one tells the command that replays it."""
    run = simulate("--seconds", "10", "--processes", "1", module=MODULE)
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stdout + run.stderr


def test_broken_variants_of_the_code_are_caught() -> None:
    run = simulate("--variants", *QUICK, module=MODULE)
    assert run.returncode == 0, run.stdout + run.stderr
    caught = dict(line.strip("| ").split(" | ")[:2] for line in run.stdout.splitlines())
    assert caught == QUICK


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_broken_variant_is_caught() -> None:
    run = simulate("--variants", module=MODULE)
    assert run.returncode == 0, run.stdout + run.stderr
