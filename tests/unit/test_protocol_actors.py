"""Decisions about actors: restarts on the same host, names and endpoints, checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from fray_coordinator.actors.rpc_secrets import with_new_key
from fray_coordinator.protocol.commit import AttemptEnd, end_of_attempt, requeue_lost
from fray_coordinator.protocol.naming import (
    SUBMISSION_SECONDS,
    Checkpoint,
    HighWaterMark,
    NameHolder,
    announced,
    checkpoint,
    fence,
    freed,
    holder_of,
    is_stale,
    may_replace,
    taken_for,
)
from fray_coordinator.protocol.retries import FIRST_RESTART_WAIT
from fray_layouts.records import (
    AttemptExit,
    ClusterSettings,
    EndpointRecord,
    JobLease,
    JobRecord,
    NameRecord,
    RpcSecrets,
    StopRequest,
)
from fray_layouts.spec_parsing import parse_spec

NOW = 5000.0
SETTINGS = ClusterSettings()
ME = JobLease(agent="me", host="mine", since=NOW - 10)


def actor(**fields: Any) -> JobRecord:
    spec = parse_spec({"name": "a", "entrypoint": {"command": ["x"]}, "actor": True, "max_retries_failure": 100})
    usual: dict[str, Any] = {"lease": ME, "started_at": NOW - 10, "submitted_at": NOW - 100, "status": "running"}
    return JobRecord(id="a-1", spec=spec, **(usual | fields))


def crashed(job: JobRecord, restart: bool = True, now: float = NOW) -> JobRecord:
    after = end_of_attempt(
        job, job.attempt, "me", AttemptEnd(AttemptExit(kind="exited", code=1), restart=restart), now, SETTINGS
    )
    assert isinstance(after, JobRecord)
    return after


# --- restarts ----------------------------------------------------------------------------------------------------


def test_a_crashed_actor_goes_on_in_the_same_hands_with_its_past_in_the_history() -> None:
    after = crashed(actor())
    assert (after.status, after.attempt, after.failures, after.preemptions) == ("running", 2, 1, 0)
    assert after.lease == replace(ME, since=NOW)
    assert [(past.attempt, past.agent, past.exit.code) for past in after.history] == [(1, "me", 1)]


def test_a_restart_spends_the_failure_budget_and_no_more() -> None:
    last = replace(actor(), failures=100)
    assert crashed(last).status == "failed"


def test_without_the_holders_word_a_child_waits_for_any_agent_with_room() -> None:
    assert crashed(actor(), restart=False).status == "pending"


@pytest.mark.parametrize("kind", ["preempted", "start-failed", "host-failed"])
def test_an_attempt_that_its_host_ended_does_not_restart_there(kind: str) -> None:
    after = end_of_attempt(actor(), 1, "me", AttemptEnd(AttemptExit(kind=kind), restart=True), NOW, SETTINGS)
    assert isinstance(after, JobRecord)
    assert after.status == "pending"


def test_a_stopped_actor_is_not_restarted() -> None:
    assert crashed(actor(stop=StopRequest(at=NOW))).status == "stopped"


def test_quick_failures_make_restarts_wait_longer_but_never_two_seconds() -> None:
    job, waits = actor(started_at=NOW), []
    for _ in range(12):
        job = crashed(job, now=NOW + 1)
        waits.append(job.not_before - (NOW + 1))
        job = replace(job, started_at=NOW)
    assert waits[0] == pytest.approx(FIRST_RESTART_WAIT)
    assert waits == sorted(waits)
    assert 1.0 < waits[-1] < 2.0


def test_an_actor_that_lived_long_is_restarted_at_once() -> None:
    job = crashed(crashed(crashed(actor())))
    lived = replace(job, started_at=NOW - 3600)
    assert crashed(lived).not_before - NOW == pytest.approx(FIRST_RESTART_WAIT)


def test_a_restarted_actor_whose_host_dies_goes_elsewhere() -> None:
    after = requeue_lost(crashed(actor()), "me", NOW, SETTINGS)
    assert after is not None
    assert (after.status, after.attempt, after.preemptions) == ("pending", 3, 1)


# --- names and endpoints -----------------------------------------------------------------------------------------


def held(**fields: Any) -> NameRecord:
    return replace(NameRecord(job="a-1", incarnation=3, since=NOW), **fields)


def published(incarnation: int, attempt: int, **fields: Any) -> EndpointRecord:
    usual = EndpointRecord(namespace="ns", name="a", actor_id="a", job="a-1", nonce="n", address="host:1")
    return replace(usual, incarnation=incarnation, attempt=attempt, **fields)


@pytest.mark.parametrize(
    ("found", "holder", "hold"),
    [
        (None, None, NameHolder.FREE),
        (held(state="free"), actor(), NameHolder.FREE),
        (held(), actor(), NameHolder.HELD),
        (held(), actor(status="pending"), NameHolder.HELD),
        (held(), actor(status="failed"), NameHolder.FREE),
        (held(), actor(stop=StopRequest(at=NOW)), NameHolder.FREE),
        (held(), None, NameHolder.COMING),
        (held(since=NOW - SUBMISSION_SECONDS), None, NameHolder.FREE),
        (held(job=""), None, NameHolder.HELD),
    ],
)
def test_a_name_is_held_while_its_job_lives_or_may_still_come(
    found: NameRecord | None, holder: JobRecord | None, hold: NameHolder
) -> None:
    assert holder_of(found, holder, NOW) is hold


def test_incarnations_only_grow() -> None:
    first = taken_for(None, "a-1", NOW)
    assert (first.incarnation, first.attempt, first.state) == (1, 0, "held")
    given_up = freed(first, 1)
    assert given_up is not None
    second = taken_for(given_up, "a-2", NOW)
    assert (second.incarnation, second.job, second.state) == (2, "a-2", "held")
    assert freed(second, 1) is None, "an older incarnation has nothing to give up"


@pytest.mark.parametrize(
    ("found", "announced_as"),
    [
        (None, None),
        (held(), 2),
        (held(attempt=2), 2),
        (held(attempt=3), None),
        (held(incarnation=4), None),
        (held(job="a-2"), None),
        (held(state="free"), None),
    ],
)
def test_only_the_latest_of_the_names_holder_announces_itself(found: NameRecord | None, announced_as: int) -> None:
    after = announced(found, published(3, 2))
    assert (after.attempt if after else None) == announced_as


def test_an_endpoint_is_never_replaced_by_an_older_one() -> None:
    assert may_replace(None, published(1, 1))
    assert may_replace(published(1, 9), published(2, 1)), "a new incarnation begins with attempt 1"
    assert may_replace(published(2, 1), published(2, 1)), "a server that was started again"
    assert not may_replace(published(2, 1), published(1, 9))


@pytest.mark.parametrize(
    ("job", "outlived"),
    [
        (actor(attempt=2), False),
        (actor(attempt=3), True),
        (actor(attempt=2, status="pending"), True),
        (actor(attempt=2, status="failed"), True),
        (None, True),
    ],
)
def test_an_endpoint_lives_as_long_as_its_attempt(job: JobRecord | None, outlived: bool) -> None:
    assert is_stale(published(1, 2), job) is outlived


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from(["a", "b"])), min_size=1))
def test_a_caller_never_goes_back(met: list[tuple[int, int, str]]) -> None:
    seen = HighWaterMark()
    for incarnation, attempt, who in met:
        endpoint = published(incarnation, attempt, actor_id=who)
        older = published(incarnation, attempt - 1, actor_id=who)
        if seen.accepts(endpoint):
            seen.meet(endpoint)
            assert seen.accepts(endpoint)
            assert not seen.accepts(older)
            assert not seen.accepts(published(incarnation - 1, 99, actor_id="c"))
    assert seen.incarnation == max(incarnation for incarnation, _, _ in met)


def test_members_of_a_pool_are_told_apart() -> None:
    seen = HighWaterMark()
    seen.meet(published(1, 5, actor_id="a"))
    assert seen.accepts(published(1, 1, actor_id="b"))


# --- checkpoints -------------------------------------------------------------------------------------------------


def test_a_fence_holds_the_state_it_restored_under_the_next_number() -> None:
    assert fence(None, 2, "me") == Checkpoint(1, 2, "me", True, None)
    written = Checkpoint(7, 1, "other", False, b"state")
    assert fence(written, 2, "me") == Checkpoint(8, 2, "me", True, b"state")
    assert fence(written, 1, "me") == Checkpoint(8, 1, "me", True, b"state"), "the same attempt, started again"


def test_an_older_attempt_takes_no_number() -> None:
    assert fence(Checkpoint(7, 3, "other", True, b""), 2, "me") is None


def test_a_checkpoint_follows_the_writers_own_last_number() -> None:
    mine = Checkpoint(8, 2, "me", True, b"old")
    assert checkpoint(mine, b"new") == Checkpoint(9, 2, "me", False, b"new")


# --- keys --------------------------------------------------------------------------------------------------------


def test_a_rotated_key_is_kept_for_participants_that_have_not_read_the_new_one() -> None:
    first = with_new_key(RpcSecrets(), NOW, 100)
    second = with_new_key(first, NOW + 1000, 100)
    assert [key.id for key in second.keys][1:] == [key.id for key in first.keys]
    assert second.keys[0].secret != second.keys[1].secret
    assert len(with_new_key(second, NOW + 1050, 100).keys) == 3
    assert [key.id for key in with_new_key(second, NOW + 1100, 100).keys][1:] == [second.keys[0].id]
    assert len(with_new_key(second, NOW + 1050, 0).keys) == 1, "at once, if a key is no secret any more"
