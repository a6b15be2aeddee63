"""Holds: a gang that is first in order forms within the longest single job that runs, whatever else comes."""

from __future__ import annotations

import pytest

from fray_coordinator.protocol.placements.assignment import MAX_MOVES
from tests.model.holdworld import FORMED, HoldWorld, Rules, Waiting
from tests.model.lasso import Longest, longest_run


def explored(world: HoldWorld) -> Longest:
    start = Waiting((), (), (-1,))
    return longest_run(start, lambda s: world.starts() if s == start else world.steps(s), lambda s: s == FORMED)


@pytest.mark.parametrize(
    "world",
    [
        HoldWorld(agents=2, need=2, longest=3, deaf=0),
        HoldWorld(agents=2, need=2, longest=3, deaf=2),
        HoldWorld(agents=2, need=2, longest=3, deaf=1, known=False),
        HoldWorld(agents=3, need=3, longest=2, deaf=1),
    ],
)
def test_it_forms_within_the_longest_job_and_the_time_to_hear(world: HoldWorld) -> None:
    found = explored(world)
    assert found.endless == []
    assert found.states > 10, "the model lost its interleavings"
    assert 0 < found.length <= world.longest + world.deaf


@pytest.mark.parametrize(
    "world",
    [
        HoldWorld(agents=3, need=2, longest=2, deaf=1),
        HoldWorld(agents=3, need=2, longest=2, deaf=1, known=False),
        pytest.param(HoldWorld(agents=3, need=2, longest=3, deaf=2), marks=pytest.mark.slow),
        pytest.param(HoldWorld(agents=4, need=3, longest=2, deaf=1), marks=pytest.mark.slow),
    ],
)
def test_each_exchange_for_a_better_set_costs_as_much_again(world: HoldWorld) -> None:
    found = explored(world)
    assert found.endless == []
    assert 0 < found.length <= (1 + MAX_MOVES) * (world.longest + world.deaf)


@pytest.mark.parametrize(
    ("world", "rules"),
    [
        (HoldWorld(agents=2, need=2, longest=2, deaf=0), Rules(hold=False)),
        (HoldWorld(agents=2, need=2, longest=2, deaf=0), Rules(fixed_window=False)),
        (HoldWorld(agents=3, need=2, longest=2, deaf=1), Rules(few_moves=False)),
    ],
)
def test_without_one_of_the_rules_it_never_forms(world: HoldWorld, rules: Rules) -> None:
    without = HoldWorld(world.agents, world.need, world.longest, world.deaf, world.known, rules)
    assert explored(without).endless != []
