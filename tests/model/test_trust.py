"""Trust and deadlines: a job that was requeued does not run beside its first copy, except in an outage."""

from __future__ import annotations

import pytest

from tests.model.explorer import Found, explore
from tests.model.trustworld import C, Rules, Trusting, TrustWorld

AT_ONCE = "two attempts run at once"
ALL = ("silence", "freeze", "suspension", "kill", "preemption")


def explored(rules: Rules, actor: bool, *faults: str, tick: float = 1.0, until: str = "") -> Found:
    world = TrustWorld(rules, actor, *faults, tick=tick)
    return explore(world.start, world.steps, world.good, world.broken, limit=500_000, until=until)


@pytest.mark.parametrize(
    ("actor", "faults"),
    [
        (True, ["silence", "freeze"]),
        (True, ["suspension"]),
        (True, ["kill", "preemption"]),
        pytest.param(False, ["freeze", "suspension"], marks=pytest.mark.slow),
    ],
)
def test_no_attempt_runs_beside_the_next_and_the_job_goes_on(actor: bool, faults: list[str]) -> None:
    found = explored(Rules(), actor, *faults)
    assert found.holes == {}
    assert found.states > 2_500, "the model lost its interleavings"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("actor", [True, False])
def test_not_with_every_fault_either(actor: bool) -> None:
    assert explored(Rules(), actor, *ALL).holes == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actor", "faults"),
    [(True, ["silence", "freeze"]), (True, ["suspension"]), (False, ["freeze"]), (False, ["suspension"])],
)
def test_nor_between_the_intervals(actor: bool, faults: list[str]) -> None:
    assert explored(Rules(), actor, *faults, tick=0.5).holes == {}


@pytest.mark.parametrize("actor", [True, False])
def test_in_an_outage_two_attempts_of_a_job_may_run_at_once_but_not_of_an_actor(actor: bool) -> None:
    def doubled(w: Trusting) -> str:
        return AT_ONCE if w.job.holder == C and w.task == "running" and w.overtime else ""

    world = TrustWorld(Rules(), actor)
    found = explore(world.start, world.steps, world.good, doubled)
    assert (AT_ONCE in found.violations) is not actor


@pytest.mark.parametrize(
    ("rule", "actor", "faults"),
    [
        ("dated_from_a_send", True, []),
        ("dated_from_the_first_send", True, []),
        ("observers_wait_longer", True, []),
        ("a_longer_promise_counts_when_applied", True, []),
        ("the_runner_has_the_deadline", True, ["freeze"]),
        ("suspension_counts", True, ["suspension"]),
        ("a_passed_deadline_stands", False, ["suspension"]),
        ("started_only_with_trust", False, []),
        ("requeued_when_the_tree_is_gone", True, ["preemption"]),
        ("runners_hold_the_hosts_lock", True, ["kill"]),
    ],
)
def test_without_the_rule_two_attempts_run_at_once(rule: str, actor: bool, faults: list[str]) -> None:
    assert AT_ONCE in explored(Rules(**{rule: False}), actor, *faults, until=AT_ONCE).holes


@pytest.mark.parametrize(
    ("rule", "faults"), [("a_shorter_promise_binds_when_sent", []), ("runners_get_the_shortest_trust", ["freeze"])]
)
def test_nor_where_a_task_may_start_before_its_agent_knows_that_the_shorter_promise_is_applied(
    rule: str, faults: list[str]
) -> None:
    """So it is with members of gangs: their votes are in their beats, and others start the gang."""
    rules = Rules(**{rule: False}, claimed_under_the_shorter_promise=False)
    assert AT_ONCE in explored(rules, True, *faults, until=AT_ONCE).holes


def test_unless_the_grace_ends_a_task_that_is_cut_off_runs_for_ever() -> None:
    assert "a task outlives its outage grace" in explored(Rules(the_grace_ends=False), False).holes


def test_a_job_claimed_under_the_long_promise_of_an_idle_agent_waits_for_its_death_as_long() -> None:
    found = explored(Rules(claimed_under_the_shorter_promise=False), True)
    assert "observers wait for a holder as long as for an idle agent" in found.holes
