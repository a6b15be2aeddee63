"""Decisions about agents and the pass: beats and mail, silence and death, the lease, retention."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from fray_coordinator.protocol.failure_detection import (
    declare_dead,
    defer_mass_failure,
    has_timed_out,
    merge_suspects,
    needs_reaping,
    observe,
)
from fray_coordinator.protocol.heartbeat import (
    DEATH_INTERVALS,
    TRUST_INTERVALS,
    HeartbeatInput,
    beat_interval,
    draining,
    is_fenced,
    max_interval,
    next_beat,
    trusted_until,
    with_bounded_interval,
    with_mail,
)
from fray_coordinator.protocol.retention import (
    ENDED_AGENTS_KEPT,
    is_removable,
    mark_expiring,
    removable_agents,
    retention_seconds,
)
from fray_coordinator.protocol.role_lease import (
    LEASE_INTERVALS,
    MAX_PROBLEMS,
    QUIET_INTERVALS,
    after_pass,
    after_run_without_lease,
    inherited_suspects,
    lease_age,
    may_take,
    next_pass_in,
    promised_interval,
)
from fray_layouts.records import (
    AgentRecord,
    ClusterSettings,
    Holding,
    InboxOrigin,
    JobRecord,
    PoolSummary,
    ReconcilerRecord,
    Resources,
    Suspect,
)
from fray_layouts.spec_parsing import parse_spec

SETTINGS = ClusterSettings()
suspects = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(Suspect, beat=st.integers(0, 2), age=st.sampled_from([0.0, 5.0, 25.0]), deferred=st.booleans()),
)


def agent(**fields: Any) -> AgentRecord:
    usual: dict[str, Any] = {"id": "a", "host": "h", "pool": "p", "beat": 7, "interval": 5.0}
    return AgentRecord(**(usual | fields))


def pulse(**fields: Any) -> HeartbeatInput:
    usual: dict[str, Any] = {"holdings": {}, "interval": 5.0, "free": Resources()}
    return HeartbeatInput(**(usual | fields))


# --- beats and mail ----------------------------------------------------------------------------------------------


def test_a_beat_raises_the_counter_takes_the_mail_and_keeps_a_wish_to_drain() -> None:
    body = next_beat(
        agent(mail=True, drain=True), pulse(holdings={"j": Holding(attempt=1)}, interval=60.0, problem="t")
    )
    assert (body.beat, body.mail, body.drain, body.interval, body.problem) == (8, False, True, 60.0, "t")
    assert body.holdings == {"j": Holding(attempt=1)}


@pytest.mark.parametrize(("holdings", "state"), [({}, "left"), ({"j": Holding(attempt=1)}, "live")])
def test_an_agent_leaves_only_with_empty_hands(holdings: dict[str, Holding], state: str) -> None:
    body = next_beat(agent(), pulse(holdings=holdings, leaving=True))
    assert body.state == state
    assert is_fenced(body) is (state == "left")


def test_an_absent_or_dead_record_fences_its_agent() -> None:
    assert is_fenced(None)
    assert is_fenced(agent(state="dead"))
    assert not is_fenced(agent())


def test_mail_is_one_flag_that_nobody_sets_twice_or_for_the_dead() -> None:
    assert with_mail(agent()) == agent(mail=True)
    assert with_mail(agent(mail=True)) is None
    assert with_mail(agent(state="dead")) is None
    assert with_mail(agent(state="a newer one")) == agent(state="a newer one", mail=True)


def test_a_wish_to_drain_comes_with_mail_and_once() -> None:
    assert draining(agent()) == agent(drain=True, mail=True)
    assert draining(agent(drain=True)) is None
    assert draining(agent(state="left")) is None
    assert draining(agent(state="a newer one")) == agent(state="a newer one", drain=True, mail=True)


def test_intervals_are_short_with_leases_and_grow_with_the_fleet() -> None:
    assert [beat_interval(True, n, SETTINGS) for n in (1, 100, 101, 1000, 1001)] == [5.0, 5.0, 10.0, 10.0, 20.0]
    assert beat_interval(False, 1, SETTINGS) == 60.0


@pytest.mark.parametrize("settings", [ClusterSettings(), ClusterSettings(beat_interval=0.5, idle_beat_interval=0.5)])
@pytest.mark.parametrize("holds_leases", [True, False])
def test_observers_use_the_interval_that_an_agent_promises_whatever_the_size_of_the_fleet(
    holds_leases: bool, settings: ClusterSettings
) -> None:
    promised = beat_interval(holds_leases, 10**6, settings)
    assert with_bounded_interval(agent(interval=promised), settings) == agent(interval=promised)


def test_trust_ends_before_an_observer_may_act() -> None:
    assert TRUST_INTERVALS < DEATH_INTERVALS
    assert trusted_until(100.0, 5.0) == 115.0


# --- silence and death -------------------------------------------------------------------------------------------


def test_age_grows_only_while_the_beat_stands_still_between_close_reads() -> None:
    first = observe(agent(), None, None, None)
    assert first == Suspect(beat=7)
    second = observe(agent(), first, None, 10.0)
    assert second.age == 10.0
    assert observe(agent(), second, None, 10.1).age == 10.0, "a longer gap adds nothing"
    assert observe(agent(), second, None, None).age == 10.0, "nor does a first read"
    assert observe(agent(beat=8), second, None, 5.0) == Suspect(beat=8), "a beat starts it anew"
    assert observe(agent(interval=60.0), first, None, 100.0).age == 100.0, "the promised interval counts"


def test_the_observations_of_others_are_compared_and_never_added() -> None:
    own, told = Suspect(beat=7, age=8.0), Suspect(beat=7, age=9.0)
    assert observe(agent(), own, told, 8.0).age == 16.0
    assert observe(agent(), own, replace(told, age=20.0), 8.0).age == 20.0
    assert observe(agent(), None, told, 8.0).age == 9.0, "an inherited age is gone on from"
    assert observe(agent(), own, replace(told, age=10_000.0), 8.0).age == 16.0, "an impossible age is not believed"
    assert observe(agent(), own, replace(told, beat=6, age=99.0), 8.0).age == 16.0, "another beat tells nothing"


@pytest.mark.parametrize(("age", "dead"), [(24.9, False), (25.0, True)])
def test_five_promised_intervals_of_silence_are_death(age: float, dead: bool) -> None:
    assert has_timed_out(agent(), Suspect(beat=7, age=age)) is dead
    assert not has_timed_out(agent(interval=60.0), Suspect(beat=7, age=age))


@pytest.mark.parametrize(("silent", "live", "deferred"), [(1, 1, 0), (1, 3, 0), (2, 6, 0), (2, 5, 2), (4, 9, 4)])
def test_more_than_a_third_at_once_get_one_more_time_out(silent: int, live: int, deferred: int) -> None:
    guilty = {str(n): Suspect(beat=7, age=25.0) for n in range(silent)}
    lenient = defer_mass_failure(guilty, live)
    assert len(lenient) == deferred
    assert all(s == Suspect(beat=7, deferred=True) for s in lenient.values())


def test_nobody_is_spared_twice() -> None:
    guilty = {"a": Suspect(beat=7, age=25.0, deferred=True), "b": Suspect(beat=7, age=25.0)}
    assert list(defer_mass_failure(guilty, 2)) == ["b"]


@given(suspects, suspects, suspects)
def test_merging_suspects_does_not_depend_on_the_order(
    one: dict[str, Suspect], two: dict[str, Suspect], three: dict[str, Suspect]
) -> None:
    assert merge_suspects(one, two) == merge_suspects(two, one)
    assert merge_suspects(one, one) == one
    assert merge_suspects(merge_suspects(one, two), three) == merge_suspects(one, merge_suspects(two, three))


@given(suspects, suspects)
def test_a_merge_keeps_the_higher_beat_and_makes_nobody_older_than_seen(
    one: dict[str, Suspect], two: dict[str, Suspect]
) -> None:
    for name, merged in merge_suspects(one, two).items():
        sources = [s for s in (one.get(name), two.get(name)) if s is not None]
        assert merged.beat == max(s.beat for s in sources)
        assert merged in sources


def test_death_is_declared_at_the_observed_beat_of_a_live_agent_only() -> None:
    held = agent(holdings={"j": Holding(attempt=1)})
    dead = declare_dead(held, 7)
    assert dead is not None
    assert (dead.state, dead.beat, dead.holdings) == ("dead", 7, held.holdings)
    assert declare_dead(held, 6) is None
    assert declare_dead(dead, 7) is None
    assert declare_dead(agent(state="left"), 7) is None


def test_the_dead_are_reaped_until_that_is_marked() -> None:
    dead = agent(state="dead", holdings={"j": Holding(attempt=1)})
    assert needs_reaping(dead)
    assert not needs_reaping(replace(dead, reaped=True))
    assert not needs_reaping(agent(state="dead"))
    assert not needs_reaping(replace(dead, state="live"))


# --- the lease of the pass ---------------------------------------------------------------------------------------


def test_two_looks_are_never_too_far_apart_for_age_to_grow() -> None:
    """The pass runs every `pass_interval`, jittered by a fifth, and takes a moment itself."""
    assert SETTINGS.pass_interval * 1.2 <= 2 * SETTINGS.beat_interval * 0.9


def test_the_lease_ages_like_a_beat() -> None:
    gap = SETTINGS.pass_interval
    assert lease_age(5.0, True, gap, SETTINGS.pass_interval) == 5.0 + gap
    assert lease_age(5.0, True, 2 * gap + 0.1, SETTINGS.pass_interval) == 5.0
    assert lease_age(5.0, True, None, SETTINGS.pass_interval) == 5.0
    assert lease_age(5.0, False, gap, SETTINGS.pass_interval) == 0.0


def test_a_lease_is_taken_when_it_is_free_or_has_not_moved() -> None:
    held = ReconcilerRecord(holder="a")
    limit = LEASE_INTERVALS * SETTINGS.pass_interval
    assert may_take(None, 0.0, SETTINGS.pass_interval)
    assert may_take(ReconcilerRecord(), 0.0, SETTINGS.pass_interval)
    assert not may_take(held, limit - 0.1, SETTINGS.pass_interval)
    assert may_take(held, limit, SETTINGS.pass_interval)


def test_a_pass_is_due_as_often_as_the_busiest_agent_beats() -> None:
    often, idle = SETTINGS.pass_interval, agent(interval=60.0)
    assert next_pass_in([idle, idle], True, SETTINGS) == 60.0
    assert next_pass_in([idle], False, SETTINGS) == often, "something is left to do"
    assert next_pass_in([idle, agent(interval=5.0)], True, SETTINGS) == often
    assert next_pass_in([idle, agent(interval=60.0, holdings={"j": Holding(attempt=1)})], True, SETTINGS) == often
    assert next_pass_in([agent(interval=240.0)], True, SETTINGS) == QUIET_INTERVALS * often
    assert next_pass_in([], True, SETTINGS) == often
    assert promised_interval(ReconcilerRecord(interval=1e9), SETTINGS) == QUIET_INTERVALS * often
    assert promised_interval(ReconcilerRecord(), SETTINGS) == often


def test_a_successor_inherits_suspects_and_credits_a_holder_that_stands_still() -> None:
    record = ReconcilerRecord(holder="a", holder_beat=7, suspects={"b": Suspect(beat=1, age=9.0)})
    assert inherited_suspects(record, 12.0, agent()) == {"b": Suspect(beat=1, age=9.0), "a": Suspect(beat=7, age=12.0)}
    assert inherited_suspects(record, 30.0, agent())["a"].age == 15.0, "perhaps nobody could write"
    only_b = {"b": Suspect(beat=1, age=9.0)}
    assert inherited_suspects(record, 30.0, agent(beat=8)) == only_b, "it lived on after its last pass"
    assert inherited_suspects(record, 30.0, agent(state="dead")) == only_b
    assert inherited_suspects(record, 30.0, None) == only_b


def test_a_holder_renews_with_all_it_knows() -> None:
    known = {"b": Suspect(beat=1, age=9.0)}
    record = after_pass(
        ReconcilerRecord(progress=3), "a", 7, known, {"p": PoolSummary(agents=1)}, {"k": "odd"}, 50.0, 7.5
    )
    assert (record.holder, record.progress, record.holder_beat, record.repaired_at) == ("a", 4, 7, 50.0)
    assert (record.suspects, record.problems) == (known, {"k": "odd"})


def test_many_problems_of_one_folder_do_not_hide_those_of_another() -> None:
    junk = {f"agents/{n:03}.json": "no JSON" for n in range(3 * MAX_PROBLEMS)}
    problems = junk | {"jobs/a-1.json": "not entered", "pending/": "no answer"}
    told = after_pass(ReconcilerRecord(), "a", 7, {}, {}, problems, 50.0, 7.5)
    assert (len(told.problems), told.problems_omitted) == (MAX_PROBLEMS, 2 * MAX_PROBLEMS + 2)
    assert {"jobs/a-1.json": "not entered", "pending/": "no answer"}.items() <= told.problems.items()


def test_a_visitor_adds_its_suspects_and_leaves_the_lease() -> None:
    held = ReconcilerRecord(holder="a", progress=3, suspects={"b": Suspect(beat=1, age=5.0), "gone": Suspect(beat=1)})
    record = after_run_without_lease(held, {"b": Suspect(beat=1, age=9.0)}, {"b"})
    assert (record.holder, record.progress) == ("a", 3)
    assert record.suspects == {"b": Suspect(beat=1, age=9.0)}


# --- retention ---------------------------------------------------------------------------------------------------


def job(status: str = "succeeded", **fields: Any) -> JobRecord:
    spec = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}})
    return JobRecord(id="j-1", spec=spec, status=status, submitted_at=0.0, **({"ended_at": 1000.0} | fields))


def test_a_job_is_due_after_its_time_and_never_before_its_children_or_its_file() -> None:
    late = 1000.0 + retention_seconds(SETTINGS) + 1
    assert is_removable(job(), late, SETTINGS, None)
    assert not is_removable(job(), late - 2, SETTINGS, None)
    assert not is_removable(job("running", ended_at=None), late, SETTINGS, None)
    assert not is_removable(job("hibernating"), late, SETTINGS, None)
    dropped = job(inbox=InboxOrigin(key="inbox/a.json", version="1"))
    assert not is_removable(dropped, late, SETTINGS, "1")
    assert is_removable(dropped, late, SETTINGS, "2")


def test_a_record_is_marked_once() -> None:
    marked = mark_expiring(job())
    assert marked is not None
    assert marked.expiring
    assert mark_expiring(marked) is None


def test_records_of_ended_agents_go_when_they_are_old_and_the_oldest_of_many_after_the_quarantine() -> None:
    now = 1e6
    old, recent = now - retention_seconds(SETTINGS), now - SETTINGS.quarantine
    assert removable_agents({"old": old - 1, "kept": old + 1}, now, SETTINGS) == ["old"]
    assert removable_agents({"new": recent - 1}, now, SETTINGS) == []
    many = {f"agents/{n}": recent - 1 - n / 1000 for n in range(ENDED_AGENTS_KEPT + 2)}
    assert removable_agents(many, now, SETTINGS) == [f"agents/{n}" for n in (ENDED_AGENTS_KEPT, ENDED_AGENTS_KEPT + 1)]
    assert removable_agents(many, now - SETTINGS.quarantine / 2, SETTINGS) == [], "a creation may still be on its way"


@pytest.mark.parametrize(("state", "gone"), [("live", False), ("draining", False), ("left", True), ("dead", True)])
def test_a_state_that_one_does_not_know_tells_neither_life_nor_death(state: str, gone: bool) -> None:
    held = agent(state=state, holdings={"j": Holding(attempt=1)})
    assert is_fenced(held) is gone
    assert needs_reaping(held) is gone
    assert (declare_dead(held, held.beat) is None) is gone
    believed = with_bounded_interval(held, SETTINGS).interval
    assert believed == (held.interval if gone or state == "live" else max_interval(SETTINGS))
    if not gone:
        assert next_beat(held, HeartbeatInput({}, 5.0, Resources())).state == state
