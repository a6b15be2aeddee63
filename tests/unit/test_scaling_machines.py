"""The fate of each machine, and which machines to order, to drain and to delete."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from fray_coordinator.protocol.scaling.machines import (
    BOOT_SECONDS,
    CALL_SECONDS,
    MISSING_SECONDS,
    STRAY_SECONDS,
    UNFIT_SECONDS,
    asked,
    created,
    given_up_stray,
    observe,
    refused,
    stray_problem,
    to_ask,
    to_delete,
)
from fray_coordinator.protocol.scaling.planning import plan
from fray_coordinator.protocol.scaling.shares import cost_so_far
from fray_coordinator.protocol.scaling.view import ListedState, refusal
from fray_layouts.records import MachineRecord
from tests.support.scaling_views import NOW, SPEC, agent, job, listed, machine, orders, view, with_agents


def test_an_intent_is_asked_for_until_it_is_listed() -> None:
    intent = machine("m1", "wanted")
    assert to_ask(view(SPEC, intent), NOW) == [(intent,)]
    waits = asked(intent, NOW)
    assert to_ask(view(SPEC, waits), NOW + 1) == []
    assert to_ask(view(SPEC, waits), NOW + 31) == [(waits,)]
    assert to_ask(replace(view(SPEC, waits), listed=None), NOW + 31) == []
    assert to_ask(replace(view(SPEC, waits), listed=[listed("m1", ListedState.CREATING)]), NOW + 31) == []


def test_a_batch_is_asked_for_whole_or_given_up() -> None:
    first, second = (machine(f"m{n}", "wanted", batch="m1", batch_size=2) for n in (1, 2))
    assert to_ask(view(SPEC, second, first), NOW) == [(first, second)]
    half = view(SPEC, first)
    assert to_ask(half, NOW) == []
    assert observe(half, NOW).changed["m1"].state == "gone"
    lost = replace(view(SPEC, asked(first, NOW), changed(asked(second, NOW), state="deleting")), listed=None)
    assert observe(lost, NOW).changed["m1"].state == "deleting"
    replaced = replace(view(SPEC, changed(first, state="up", up_at=1.0)), listed=[listed("m1")])
    assert observe(replaced, NOW).changed["m1"].state == "up"


def test_a_machine_is_up_once_all_of_its_hosts_beat() -> None:
    waits = asked(machine("m1", "wanted", hosts=2), NOW)
    seen = replace(view(SPEC, waits), listed=[listed("m1")])
    one = observe(with_agents(seen, agent("a", "m1")), NOW).changed["m1"]
    assert (one.state, one.unseen_since) == ("creating", NOW)
    both = observe(with_agents(seen, agent("a", "m1"), agent("b", "m1")), NOW).changed["m1"]
    assert (both.state, both.up_at, both.unseen_since) == ("up", NOW, None)


def test_a_machine_that_never_boots_is_replaced_after_ten_minutes() -> None:
    booting = machine("m1", "creating", asked_at=1.0, created_at=1.0, unseen_since=NOW - BOOT_SECONDS)
    seen = replace(view(SPEC, booting), listed=[listed("m1")])
    found = observe(seen, NOW)
    assert found.changed["m1"].state == "deleting"
    assert (found.zones["us-a"].kind, "m1" in found.zones["us-a"].text) == ("boot-failure", True)
    assert observe(seen, NOW - 1).changed == {}
    was_up = replace(seen, machines={"m1": changed(booting, state="up", up_at=1.0)})
    assert (observe(was_up, NOW).changed["m1"].state, observe(was_up, NOW).zones) == ("deleting", {})


def test_a_request_that_waits_for_capacity_costs_nothing() -> None:
    taken = created(asked(machine("m1", "wanted", hourly_cost=3600.0), NOW), "operation", NOW)
    assert taken is not None
    assert cost_so_far(taken, NOW + 5) == 5.0
    waits = replace(view(SPEC, taken), listed=[listed("m1", ListedState.WAITING, billed=False)], listed_at=NOW + 9)
    after = observe(waits, NOW + 10).changed["m1"]
    assert cost_so_far(after, NOW + 90) == 0.0
    there = replace(view(SPEC, after), listed=[listed("m1", ListedState.CREATING)], listed_at=NOW + 99)
    billed = observe(there, NOW + 100).changed["m1"]
    assert cost_so_far(billed, NOW + 107) == 7.0
    old = replace(waits, machines={"m1": billed})
    assert observe(old, NOW + 110).changed == {}, "a list from before says nothing of it"


def test_why_a_machine_goes_stays_when_its_provider_says_something_else() -> None:
    idle = machine("m1", "draining", up_at=1.0, created_at=1.0, reason="idle for 60 s")
    ended = replace(view(SPEC, idle), listed=[listed("m1", ListedState.LOST, error="the container ended")])
    after = observe(ended, NOW).changed["m1"]
    assert (after.state, after.reason, after.error) == ("deleting", "idle for 60 s", "the container ended")
    left = with_agents(replace(ended, listed=[listed("m1")]), agent("a", "m1", state="left"))
    assert observe(left, NOW).changed["m1"].reason == "idle for 60 s"


def test_an_outage_without_runs_kills_no_machine() -> None:
    up = machine("m1", "up", up_at=1.0, unseen_since=NOW - 700.0, created_at=1.0)
    seen = replace(view(SPEC, up), listed=[listed("m1")], ran_at=NOW - 690.0)
    after = observe(seen, NOW).changed["m1"]
    assert (after.state, NOW - (after.unseen_since or 0.0)) == ("up", 130.0)


def test_a_machine_that_is_not_listed_is_gone_unless_its_agents_beat() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, unseen_since=NOW - MISSING_SECONDS)
    assert observe(view(SPEC, up), NOW).changed["m1"].state == "gone"
    assert observe(replace(view(SPEC, up), listed=None), NOW).changed == {}
    alive = with_agents(view(SPEC, up), agent("a", "m1"))
    assert observe(alive, NOW).changed["m1"].state == "up"


def test_a_machine_with_an_agent_that_takes_no_work_drains_and_is_replaced() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, hosts=2)
    sick = agent("b", "m1", unfit=True, problem="claims nothing: a chip is held")
    seen = replace(with_agents(view(SPEC, up, jobs=[job(1)]), agent("a", "m1"), sick), listed=[listed("m1")])
    first = observe(seen, NOW).changed["m1"]
    why = "its agent b is unfit: claims nothing: a chip is held"
    assert (first.state, first.unfit_since, first.error) == ("up", NOW, why)
    waits = replace(seen, machines={"m1": first})
    assert observe(waits, NOW + UNFIT_SECONDS - 1).changed == {}
    healed = observe(with_agents(waits, agent("b", "m1")), NOW + 100).changed["m1"]
    assert (healed.state, healed.unfit_since, healed.error) == ("up", None, "")
    after = observe(waits, NOW + UNFIT_SECONDS).changed["m1"]
    assert (after.state, after.reason) == ("draining", why)


def test_a_preempted_machine_is_deleted() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    seen = replace(view(SPEC, up), listed=[listed("m1", ListedState.LOST, error="preempted")])
    after = observe(with_agents(seen, agent("a", "m1")), NOW).changed["m1"]
    assert (after.state, after.error) == ("deleting", "preempted")
    assert to_delete(view(SPEC, after)) == [after]


def test_a_refusal_that_the_list_tells_is_the_zones_answer_once() -> None:
    waits = asked(machine("m1", "wanted"), NOW - 5)
    told = listed("m1", ListedState.LOST, error="none left", error_kind="stockout")
    found = observe(replace(view(SPEC, waits), listed=[told]), NOW)
    assert (found.changed["m1"].state, found.zones["us-a"].kind) == ("deleting", "stockout")
    two = replace(view(SPEC, waits, asked(machine("m2", "wanted"), NOW - 5)), listed=[told, replace(told, name="m2")])
    assert observe(two, NOW).zones["us-a"].times == 1


def test_machines_that_are_gone_or_elsewhere_by_their_records_are_deleted() -> None:
    """They were made by a call that came late. Not one that ends already."""
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    late, other, ending = listed("m1", zone="eu-b"), listed("m9"), listed("m8", ListedState.ENDING)
    found = observe(replace(view(SPEC, up), recorded={"m9", "m8"}, listed=[listed("m1"), late, other, ending]), NOW)
    assert set(found.strangers) == {late, other}
    assert set(found.changed) == {"m1"}
    assert observe(replace(view(SPEC, up), recorded={"m9"}, listed=None), NOW).strangers == ()


def test_what_a_repeated_request_made_once_more_is_deleted() -> None:
    """Unless the record of that machine is missing, too."""
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    twice = replace(listed("m1-x2"), copy_of="m1")
    for seen in (view(SPEC, up), replace(view(SPEC), recorded={"m1"})):
        found = observe(replace(seen, listed=[listed("m1"), twice]), NOW)
        assert twice in found.strangers
        assert "m1-x2" not in found.changed
    found = observe(replace(view(SPEC), listed=[listed("m1"), twice]), NOW)
    assert (found.strangers, set(found.changed)) == ((), {"m1", "m1-x2"})
    stray = found.changed["m1"]
    found = observe(replace(view(SPEC, stray), listed=[listed("m1"), twice]), NOW)
    assert (found.strangers, set(found.changed)) == ((), {"m1-x2"})
    found = observe(replace(view(SPEC, stray), recorded={"m1-x2"}, listed=[listed("m1"), twice]), NOW)
    assert (found.strangers, found.changed) == ((twice,), {})


def test_a_machine_without_a_record_is_kept_for_longer_than_backups_are_old() -> None:
    """As after an older copy of the root was put in its place."""
    seen = replace(view(SPEC), listed=[listed("m9"), listed("m8", ListedState.ENDING), listed("no id")], listed_at=NOW)
    found = observe(seen, NOW)
    assert (found.strangers, set(found.changed)) == ((), {"m9"})
    stray = found.changed["m9"]
    assert (stray.state, stray.zone, stray.provider, stray.billed_at) == ("stray", "us-a", "command", NOW)
    assert "the records of 1 machines are missing (m9)" in stray_problem([stray])

    def later(seconds: float, **about: Any) -> MachineRecord:
        after = replace(view(SPEC, stray), listed=[listed("m9")], listed_at=NOW + seconds, ran_at=NOW + seconds - 5)
        return observe(replace(after, **about), NOW + seconds).changed.get("m9", stray)

    assert later(STRAY_SECONDS - 1) == stray
    assert later(STRAY_SECONDS - 1, listed=[listed("m9", ListedState.LOST), listed("m9", zone="eu-b")]) == stray
    assert to_delete(view(SPEC, stray)) == []
    assert plan(view(SPEC, stray), NOW).changed == {}
    assert later(STRAY_SECONDS).state == "deleting"
    assert later(STRAY_SECONDS, listed=None) == stray
    assert later(60.0, listed=[]).state == "gone"
    assert later(60.0, listed=None) == stray
    joined = later(60.0, agents={"a": agent("a", "m9")})
    assert (joined.state, joined.up_at, stray_problem([joined])) == ("up", NOW + 60.0, "")
    given_up = given_up_stray(stray)
    assert given_up is not None
    assert to_delete(view(SPEC, given_up)) == [given_up]
    assert given_up_stray(joined) is None


def test_a_deleted_machine_is_gone_once_no_call_can_be_under_way() -> None:
    never = machine("m1", "deleting", asked_at=NOW - CALL_SECONDS + 1)
    assert observe(replace(view(SPEC, never), listed_at=NOW), NOW).changed == {}
    assert observe(replace(view(SPEC, never), listed_at=NOW), NOW + 600.0).changed == {}
    assert observe(replace(view(SPEC, never), listed_at=NOW + 1), NOW + 1).changed["m1"].state == "gone"
    there = replace(view(SPEC, never), listed=[listed("m1", ListedState.ENDING)])
    assert observe(there, NOW + 1).changed["m1"].state == "deleting"


@pytest.mark.parametrize(("state", "after"), [("deleting", "deleting"), ("up", "up")])
def test_a_list_that_was_asked_for_before_a_machine_was_made_says_nothing_of_it(state: str, after: str) -> None:
    there = machine("m1", state, asked_at=NOW - 300.0, created_at=NOW - 290.0, unseen_since=NOW - 200.0)
    old = replace(view(SPEC, there), listed_at=NOW - 290.0)
    assert observe(old, NOW).changed.get("m1", there).state == after
    assert observe(replace(old, listed_at=NOW - 289.0), NOW).changed["m1"].state == "gone"


def test_a_slice_that_is_taken_away_on_its_way_goes_though_another_of_its_request_is_up() -> None:
    """It is not ordered again, since that would be half of the request."""
    pair = {"batch": "m1", "batch_size": 2, "asked_at": NOW - 300.0, "created_at": NOW - 290.0}
    up, lost = machine("m1", "up", up_at=NOW - 200.0, **pair), machine("m2", "creating", **pair)
    seen = replace(view(SPEC, up, lost), listed=[listed("m1")], listed_at=NOW)
    assert observe(seen, NOW).changed["m2"].state == "gone"
    neither = replace(view(SPEC, machine("m1", "creating", **pair), lost), listed_at=NOW)
    assert observe(neither, NOW).changed == {}
    assert [len(batch) for batch in to_ask(neither, NOW)] == [2]


def test_answers_of_a_create() -> None:
    waits = asked(machine("m1", "wanted"), NOW)
    accepted = created(waits, "op", NOW)
    assert accepted is not None
    assert accepted.created_at == NOW
    deleting = created(changed(waits, state="deleting", error="preempted"), "op", NOW)
    assert deleting is not None
    assert (deleting.operation, deleting.error) == ("op", "preempted")
    assert created(None, "op", NOW) is None
    assert created(changed(waits, state="gone"), "op", NOW) is None
    assert refused(waits, "stockout", "none").state == "gone"
    assert refused(waits, "unavailable", "lost").state == "creating"
    assert refused(waits, "stockout", "none", again=True).state == "deleting"


def test_a_refused_machine_leaves_its_place_to_the_next_zone_at_once() -> None:
    waits = asked(machine("m1", "wanted"), NOW)
    answered = {"us-a": refusal(None, "stockout", "none", NOW)}
    there = {m.name: m for m in [refused(waits, "stockout", "none")] if m.state != "gone"}
    seen = replace(view(changed(SPEC, max=1), jobs=[job(1)]), machines=there, zones=answered)
    assert orders(seen) == [(1, "eu-b", False)]


def test_a_machine_that_is_lost_on_its_way_pauses_its_zone() -> None:
    waits = asked(machine("m1", "wanted"), NOW - 5)
    found = observe(replace(view(SPEC, waits), listed=[listed("m1", ListedState.LOST)]), NOW)
    assert found.zones["us-a"].until > NOW


def test_a_slice_with_a_host_that_leaves_drains_as_a_whole() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, hosts=2)
    seen = replace(view(SPEC, up), listed=[listed("m1")])
    told = with_agents(seen, agent("a", "m1", drain=True), agent("b", "m1"))
    assert observe(told, NOW).changed["m1"].state == "draining"
    left = with_agents(seen, agent("a", "m1", state="left"), agent("b", "m1"))
    assert observe(left, NOW).changed["m1"].state == "draining"


def test_a_slice_is_deleted_only_once_the_agents_of_all_its_hosts_have_left() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, hosts=2)
    seen = replace(view(SPEC, up), listed=[listed("m1")])
    left = agent("a", "m1", state="left")
    assert observe(with_agents(seen, left), NOW).changed["m1"].state == "draining"
    restarted = with_agents(seen, left, agent("a2", "m1", state="left"), agent("b", "m1"))
    assert observe(restarted, NOW).changed.get("m1", up).state == "draining", "what b runs ends first"
    both = with_agents(seen, left, agent("b", "m1", state="left"))
    assert observe(both, NOW).changed["m1"].state == "deleting"
