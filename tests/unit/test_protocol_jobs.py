"""Decisions about one job: the table, claim, the end of an attempt with its budgets, stop, and families."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from fray_coordinator.protocol.claiming import (
    AVOIDED_HOST_SECONDS,
    SET_BACK_SECONDS,
    Skip,
    claim,
    holds_attempt,
    is_pending_too_long,
)
from fray_coordinator.protocol.commit import AttemptEnd, end_of_attempt, requeue_lost
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import ChildVerdict, adopted, judge_child, request_stop
from fray_coordinator.protocol.transitions import (
    TERMINAL,
    TRANSITIONS,
    Event,
    IllegalTransition,
    Status,
    is_terminal,
    transition,
)
from fray_layouts.records import (
    MAX_HISTORY,
    AttemptExit,
    ClusterSettings,
    JobLease,
    JobRecord,
    JobResult,
    ParentLink,
    PastAttempt,
    StopRequest,
)
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import StopOrigin

NOW = 5000.0
SETTINGS = ClusterSettings(requeue_backoff=2.0, requeue_backoff_max=10.0, host_killer_limit=3)
ME = JobLease(agent="me", host="mine", since=NOW - 10)


def job(status: str = "pending", *, spec: dict[str, Any] | None = None, **fields: Any) -> JobRecord:
    wanted = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, **(spec or {})})
    return JobRecord(id="j-1", spec=wanted, status=status, **({"submitted_at": NOW - 100} | fields))


def running(**fields: Any) -> JobRecord:
    usual: dict[str, Any] = {"lease": ME, "started_at": NOW - 10}
    return job("running", **(usual | fields))


def ended(record: JobRecord, kind: str, **ending: Any) -> JobRecord:
    """The record after its holder ended the attempt with this exit."""
    result = end_of_attempt(record, record.attempt, "me", AttemptEnd(AttemptExit(kind=kind), **ending), NOW, SETTINGS)
    assert isinstance(result, JobRecord), result
    return result


def died(record: JobRecord) -> JobRecord:
    result = requeue_lost(record, "me", NOW, SETTINGS)
    assert result is not None
    return result


def again(record: JobRecord) -> JobRecord:
    """The next attempt, claimed by the same agent."""
    claimed = claim(replace(record, not_before=0.0, avoid_hosts=[]), record.attempt, ME, ChildVerdict.KEEP)
    assert isinstance(claimed, JobRecord)
    return claimed


# --- the table ---------------------------------------------------------------------------------------------------


def test_nothing_leaves_a_terminal_status_and_everything_else_can_end() -> None:
    for status, event in product(TERMINAL, Event):
        with pytest.raises(IllegalTransition):
            transition(job(str(status)), event)
    reaches_the_end = {status for status in Status if _reachable(status) & TERMINAL}
    assert reaches_the_end == set(Status)


def _reachable(status: Status) -> set[Status]:
    seen, new = set(), {status}
    while new:
        seen |= new
        new = {to for (start, _), to in TRANSITIONS.items() if start in seen} - seen
    return seen


def test_only_a_requeue_and_a_restart_raise_the_attempt() -> None:
    for status, event in TRANSITIONS:
        after = transition(job(str(status), attempt=7), event)
        assert after.attempt == (8 if event in (Event.REQUEUE, Event.REGATHER, Event.RESTART) else 7)


def test_a_status_from_the_future_is_neither_terminal_nor_moved() -> None:
    strange = job("hibernating")
    assert not is_terminal(strange)
    with pytest.raises(IllegalTransition):
        transition(strange, Event.CLAIM)


# --- claim -------------------------------------------------------------------------------------------------------


def test_a_claim_takes_the_attempt_that_the_entry_names() -> None:
    claimed = claim(job(attempt=3), 3, JobLease(agent="me", host="h", since=NOW), ChildVerdict.KEEP)
    assert isinstance(claimed, JobRecord)
    assert (claimed.status, claimed.attempt, claimed.started_at) == ("running", 3, NOW)
    assert holds_attempt(claimed, 3, "me")
    assert not holds_attempt(claimed, 3, "you")
    assert not holds_attempt(claimed, 2, "me")


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PENDING] + ["hibernating"])
def test_only_a_pending_job_is_claimed(status: str) -> None:
    assert claim(job(str(status)), 1, ME, ChildVerdict.KEEP) == Skip(None)


@pytest.mark.parametrize("entry", [1, 3])
def test_an_entry_of_another_attempt_claims_nothing(entry: int) -> None:
    assert claim(job(attempt=2), entry, ME, ChildVerdict.KEEP) == Skip(None)


def test_a_claim_waits_for_the_back_off_and_longer_on_a_host_to_avoid() -> None:
    waiting = job(not_before=NOW + 5, avoid_hosts=["broken"])
    fine, broken = JobLease(agent="a", host="fine", since=NOW), JobLease(agent="b", host="broken", since=NOW + 6)
    assert claim(waiting, 1, fine, ChildVerdict.KEEP) == Skip(NOW + 5)
    assert isinstance(claim(waiting, 1, replace(fine, since=NOW + 5), ChildVerdict.KEEP), JobRecord)
    assert claim(waiting, 1, broken, ChildVerdict.KEEP) == Skip(NOW + 5 + AVOIDED_HOST_SECONDS)
    assert isinstance(
        claim(waiting, 1, replace(broken, since=NOW + 5 + AVOIDED_HOST_SECONDS), ChildVerdict.KEEP), JobRecord
    )


def test_a_claim_does_not_wait_until_a_clock_that_was_set_back_is_where_it_was() -> None:
    past = PastAttempt(attempt=1, agent="a", host="h", started_at=NOW, ended_at=NOW, exit=AttemptExit(kind="lost"))
    waiting = job(attempt=2, not_before=NOW + 5, avoid_hosts=[ME.host], history=[past])
    set_back = replace(ME, since=NOW - SET_BACK_SECONDS - 1)
    assert isinstance(claim(waiting, 2, set_back, ChildVerdict.KEEP), JobRecord)
    hosts_differ = replace(ME, since=NOW - SET_BACK_SECONDS)
    assert claim(waiting, 2, hosts_differ, ChildVerdict.KEEP) == Skip(NOW + 5 + AVOIDED_HOST_SECONDS)


def test_a_claimer_stops_jobs_that_waited_too_long_or_lost_their_parent() -> None:
    late = claim(job(spec={"pending_timeout": 10}), 1, replace(ME, since=NOW), ChildVerdict.KEEP)
    orphan = claim(job(), 1, ME, ChildVerdict.STOP)
    for stopped, by in ((late, "expired"), (orphan, "parent")):
        assert isinstance(stopped, JobRecord)
        assert stopped.stop is not None
        assert (stopped.status, stopped.stop.by) == ("stopped", by)
    assert isinstance(claim(job(), 1, ME, ChildVerdict.WAIT), Skip)


def test_each_attempts_wait_is_counted_anew() -> None:
    first = job(spec={"pending_timeout": 50}, submitted_at=NOW - 1000)
    assert is_pending_too_long(first, NOW)
    second = ended(again(replace(first, submitted_at=NOW)), "preempted")
    assert not is_pending_too_long(replace(second, submitted_at=NOW - 1000), NOW + 49)
    assert is_pending_too_long(second, NOW + 51)


# --- the end of an attempt ---------------------------------------------------------------------------------------


def test_a_success_carries_its_result_and_is_not_written_again() -> None:
    result = JobResult(encoding="json", value=1)
    done = ended(running(), "success", result=result)
    assert (done.status, done.result, done.ended_at) == ("succeeded", result, NOW)
    ending = AttemptEnd(AttemptExit(kind="success"), result)
    assert end_of_attempt(done, 1, "me", ending, NOW, SETTINGS) is None


@pytest.mark.parametrize(
    "now",
    [
        None,
        running(attempt=2),
        running(lease=JobLease(agent="you", host="h", since=NOW)),
        job(attempt=2),
        job("failed", lease=ME),
        job("stopped", lease=ME),
        job("hibernating", lease=ME),
    ],
)
def test_a_holder_whose_lease_is_gone_writes_nothing(now: JobRecord | None) -> None:
    for kind in ("success", "exited", "preempted", "start-failed"):
        assert end_of_attempt(now, 1, "me", AttemptEnd(AttemptExit(kind=kind)), NOW, SETTINGS) is None


def test_the_failure_budget_is_spent_by_failures_alone() -> None:
    record = running(spec={"max_retries_failure": 1, "max_retries_preemption": 1})
    preempted = ended(record, "preempted")
    assert (preempted.status, preempted.failures, preempted.preemptions) == ("pending", 0, 1)
    failed = ended(again(preempted), "exited")
    assert (failed.status, failed.failures, failed.preemptions) == ("pending", 1, 1)
    assert ended(again(failed), "exited").status == "failed"
    too_often = ended(again(failed), "preempted")
    assert too_often.exit is not None
    assert too_often.status == "failed"
    assert "max_retries_preemption=1" in too_often.exit.message


def test_an_environment_that_cannot_be_made_fails_the_job_for_good() -> None:
    after = ended(running(spec={"max_retries_failure": 5}), "environment-failed")
    assert (after.status, after.attempt, after.history) == ("failed", 1, [])


def test_failing_to_start_spends_no_budget_and_avoids_the_host() -> None:
    record = running(spec={"max_retries_failure": 0, "max_retries_preemption": 0})
    for n in range(1, 13):
        record = again(ended(replace(record, lease=replace(ME, host=f"h{n}")), "start-failed"))
    after = ended(replace(record, lease=replace(ME, host="h13")), "start-failed")
    assert (after.status, after.failures, after.preemptions) == ("pending", 0, 0)
    assert after.avoid_hosts[0] == "h13"


def test_a_host_that_fails_under_a_job_spends_no_failure_and_is_avoided() -> None:
    record = running(spec={"max_retries_failure": 0, "max_retries_preemption": 1})
    after = ended(replace(record, lease=replace(ME, host="full")), "host-failed")
    assert (after.status, after.failures, after.preemptions, after.avoid_hosts) == ("pending", 0, 1, ["full"])
    assert ended(again(after), "host-failed").status == "failed"


def test_avoided_hosts_are_listed_once_latest_first_and_not_for_ever() -> None:
    hosts = ["a", "b", "a", *"cdefghij"]
    record = job()
    for host in hosts:
        avoid_hosts = record.avoid_hosts
        held = replace(running(avoid_hosts=avoid_hosts, attempt=record.attempt), lease=replace(ME, host=host))
        record = ended(held, "start-failed")
    assert record.avoid_hosts == list("jihgfedc")


@pytest.mark.parametrize(("failures", "wait"), [(0, 2.0), (1, 4.0), (2, 8.0), (3, 10.0), (30, 10.0), (2000, 10.0)])
def test_requeues_back_off_up_to_a_limit(failures: int, wait: float) -> None:
    record = ended(running(spec={"max_retries_failure": 10_000}, failures=failures), "exited")
    assert record.not_before == NOW + wait


def test_a_job_that_could_not_be_started_a_thousand_times_still_waits() -> None:
    assert ended(running(start_failures=2000), "start-failed").not_before == NOW + 10.0


def test_a_requeue_leaves_no_lease_and_remembers_the_attempt() -> None:
    record = running(spec={"max_retries_failure": 100})
    for n in range(1, MAX_HISTORY + 3):
        record = ended(record, "exited")
        assert (record.status, record.lease, record.started_at, record.attempt) == ("pending", None, None, n + 1)
        record = again(record)
    assert [past.attempt for past in record.history] == [3, 4, 5, 6, 7]
    assert (record.history[-1].agent, record.history[-1].exit.kind) == ("me", "exited")
    assert record.forgotten_seconds == 2 * (NOW - ME.since), "of the first two"


# --- an agent's death --------------------------------------------------------------------------------------------


def test_a_job_is_requeued_from_the_dead_agent_only() -> None:
    assert requeue_lost(running(), "you", NOW, SETTINGS) is None
    assert requeue_lost(job(), "me", NOW, SETTINGS) is None
    assert requeue_lost(ended(running(), "success"), "me", NOW, SETTINGS) is None
    back = died(running())
    assert (back.status, back.attempt, back.preemptions, back.agent_deaths) == ("pending", 2, 1, 1)


def test_deaths_in_a_row_count_as_one_failure_each_time() -> None:
    record = running(spec={"max_retries_failure": 1})
    for _ in range(2):
        record = again(died(record))
    third = died(record)
    assert (third.status, third.failures, third.agent_deaths) == ("pending", 1, 0)
    assert "kills its hosts" in third.history[-1].exit.message
    record = again(third)
    for _ in range(2):
        record = again(died(record))
    assert died(record).status == "failed"


@pytest.mark.parametrize("between", ["preempted", "exited"])
def test_an_attempt_that_ended_otherwise_breaks_the_row_of_deaths(between: str) -> None:
    record = running(spec={"max_retries_failure": 1})
    for _ in range(2):
        record = again(died(record))
    other = ended(record, between)
    assert other.agent_deaths == 0
    assert died(again(other)).agent_deaths == 1


def test_deaths_spend_the_preemption_budget_until_it_is_empty() -> None:
    record = running(spec={"max_retries_preemption": 1})
    assert died(again(died(record))).status == "failed"


# --- stop --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["pending", "unadmitted"])
def test_a_job_that_does_not_run_is_stopped_by_one_write(status: str) -> None:
    stopped = request_stop(job(status), NOW, "enough")
    assert stopped is not None
    assert stopped.exit is not None
    assert (stopped.status, stopped.ended_at, stopped.exit.message) == ("stopped", NOW, "enough")


def test_a_running_job_is_asked_once() -> None:
    asked = request_stop(running(), NOW, "enough")
    assert asked is not None
    assert asked.stop == StopRequest(at=NOW, reason="enough")
    assert (asked.status, asked.attempt, asked.lease) == ("running", 1, ME)
    assert request_stop(asked, NOW + 1, "again") is None


@pytest.mark.parametrize("status", [*sorted(TERMINAL), "hibernating"])
def test_ended_or_unknown_jobs_are_not_stopped(status: str) -> None:
    assert request_stop(job(str(status)), NOW, "enough") is None


@pytest.mark.parametrize("kind", ["exited", "preempted", "start-failed", "host-failed", "stopped", "unhealthy"])
def test_a_job_with_a_wish_to_stop_never_gets_another_attempt(kind: str) -> None:
    asked = running(stop=StopRequest(at=NOW, reason="enough"), spec={"max_retries_failure": 5})
    for after in (ended(asked, kind), died(asked)):
        assert after.exit is not None
        assert (after.status, after.attempt, after.exit.kind) == ("stopped", 1, "stopped")
        assert (after.failures, after.preemptions) == (0, 0)


@pytest.mark.parametrize(("complete", "status"), [(True, "succeeded"), (False, "stopped")])
def test_a_success_counts_against_a_stop_if_it_was_first(complete: bool, status: str) -> None:
    asked = running(stop=StopRequest(at=NOW))
    assert ended(asked, "success", complete_before_stop=complete).status == status


KINDS = st.sampled_from(["success", "exited", "preempted", "start-failed", "host-failed", "lost", "stop"])


@given(st.lists(KINDS, max_size=30), st.integers(0, 3), st.integers(0, 5))
def test_attempts_grow_and_budgets_hold_in_any_sequence_of_ends(
    kinds: list[str], failures: int, preemptions: int
) -> None:
    spec = {"max_retries_failure": failures, "max_retries_preemption": preemptions}
    record = running(spec=spec)
    for kind in kinds:
        if kind == "stop":
            after = request_stop(record, NOW, "") or record
        elif kind == "lost":
            after = died(record)
        else:
            after = ended(record, kind)
        assert after.attempt in (record.attempt, record.attempt + 1)
        assert after.failures <= failures + 1
        assert after.preemptions <= preemptions + 1
        if kind in ("preempted", "start-failed", "host-failed"):
            assert after.failures == record.failures
        if record.stop is not None:
            assert after.attempt == record.attempt
        if is_terminal(after):
            return
        record = again(after) if after.status == Status.PENDING else after


# --- families ----------------------------------------------------------------------------------------------------

ADOPTION = 60.0


def child(**fields: Any) -> JobRecord:
    return job(**({"parent": ParentLink(job="p-1", attempt=2)} | fields))


@pytest.mark.parametrize(
    ("parent", "wanted"),
    [
        (running(attempt=2), ChildVerdict.KEEP),
        (running(attempt=3), ChildVerdict.STOP),
        (job(attempt=3), ChildVerdict.STOP),
        (job("succeeded", attempt=2), ChildVerdict.STOP),
        (job("failed", attempt=2), ChildVerdict.STOP),
        (None, ChildVerdict.STOP),
    ],
)
def test_a_child_lives_while_its_parent_runs_at_its_attempt(parent: JobRecord | None, wanted: ChildVerdict) -> None:
    assert judge_child(child(), parent, NOW, ADOPTION) is wanted
    assert (
        judge_child(child(parent=ParentLink(job="p-1", attempt=2, detached=True)), parent, NOW, ADOPTION)
        is ChildVerdict.KEEP
    )
    assert judge_child(child(parent=None), parent, NOW, ADOPTION) is ChildVerdict.KEEP


def test_a_child_with_an_id_waits_to_be_adopted() -> None:
    mine = child(spec={"id": "mine"})
    assert judge_child(mine, job(attempt=3), NOW, ADOPTION) is ChildVerdict.WAIT
    parent = running(attempt=3, started_at=NOW)
    assert judge_child(mine, parent, NOW + ADOPTION - 1, ADOPTION) is ChildVerdict.WAIT
    assert judge_child(mine, parent, NOW + ADOPTION, ADOPTION) is ChildVerdict.STOP
    assert judge_child(mine, job("succeeded", attempt=3), NOW, ADOPTION) is ChildVerdict.STOP


def test_adoption_only_goes_forward_and_only_within_the_family() -> None:
    after = adopted(child(), "p-1", 3)
    assert after is not None
    assert after.parent == ParentLink(job="p-1", attempt=3)
    assert adopted(child(), "p-1", 2) is None
    assert adopted(child(), "p-1", 1) is None
    assert adopted(child(), "p-2", 3) is None
    assert adopted(child(status="succeeded"), "p-1", 3) is None
    assert adopted(child(stop=StopRequest(at=NOW)), "p-1", 3) is None
    assert adopted(child(parent=ParentLink(job="p-1", attempt=2, detached=True)), "p-1", 3) is None
    assert adopted(child(parent=None), "p-1", 3) is None


def test_a_failure_of_the_job_itself_shows_that_it_could_start() -> None:
    spec = {"max_retries_failure": 1}
    after = ended(running(start_failures=3, agent_deaths=2, avoid_hosts=["x"], spec=spec), "exited")
    assert (after.failures, after.start_failures, after.agent_deaths, after.avoid_hosts) == (1, 0, 0, [])


def test_an_entry_says_whether_its_job_needs_a_container() -> None:
    with_image = job(spec={"environment": {"docker_image": "registry/image:1"}})
    assert (entry_of(job()).shape.image, entry_of(with_image).shape.image) == (False, True)


def test_a_stop_of_a_job_that_runs_says_who_wants_it() -> None:
    wanted = request_stop(running(), NOW, "its parent has ended", by=StopOrigin.PARENT)
    assert wanted is not None
    assert wanted.stop is not None
    assert (wanted.status, wanted.stop.by) == ("running", "parent")
