"""A share of the simulation of actors, with other seeds each time, and broken variants of the code that it catches."""

from __future__ import annotations

import pytest

from tests.simulation.test_simulation import simulate

MODULE = "tests.simulation.actors"


@pytest.mark.timeout(600)
def test_fresh_seeds_of_actors_break_no_invariant() -> None:
    """Other seeds each time; a failing one tells the command that replays it."""
    run = simulate("--seconds", "10", "--processes", "1", module=MODULE)
    print(run.stdout, run.stderr)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("variant", "invariant"),
    [
        ("names_without_conditions", "an incarnation has one holder"),
        ("endpoints_without_conditions", "an endpoint is never replaced by an older one"),
        ("names_of_jobs_to_come_are_told", "who finds a name finds its job"),
        ("callers_forget", "a caller never goes back"),
        ("fences_without_state", "an acknowledged call is never lost"),
        ("replies_before_checkpoints", "an acknowledged call is never lost"),
        ("stopped_actors_are_restarted", "attempts only grow"),
        ("actors_live_through_outages", "actors end with the trust in their lease"),
        ("restarts_are_forgotten", "no job is ever unreachable"),
    ],
)
def test_a_broken_variant_is_caught(variant: str, invariant: str) -> None:
    run = simulate("--variants", variant, module=MODULE)
    assert run.returncode == 0, run.stdout + run.stderr
    assert invariant in run.stdout
