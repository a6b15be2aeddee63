"""What is decided about jobs: records in, records out."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from fray_coordinator.protocol import stopping
from fray_coordinator.protocol.claiming import Skip, action_for, claim
from fray_coordinator.protocol.commit import AttemptEnd, end_of_attempt, requeue_lost
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import request_stop
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    ClusterSettings,
    Holding,
    JobLease,
    JobRecord,
    JobResult,
    ParentLink,
    PastAttempt,
    StopRequest,
)
from fray_layouts.spec_parsing import parse_spec
from tests.vectors.form import NOW, File, plain

SETTINGS = ClusterSettings()
LEASE = JobLease(agent="h1-1", host="h1", since=NOW)


def job(status: str = "pending", **fields: Any) -> JobRecord:
    """A job of the name `a`; `spec` has more fields of its spec."""
    spec = {"name": "a", "namespace": "a", "entrypoint": {"command": ["true"]}, **fields.pop("spec", {})}
    return JobRecord(**{"id": "a-1", "spec": parse_spec(spec), "status": status, "submitted_at": NOW - 60, **fields})


def running(**fields: Any) -> JobRecord:
    """The same, running since ten seconds in the hands of h1-1."""
    return job("running", **{"lease": replace(LEASE, since=NOW - 10), "started_at": NOW - 10, **fields})


def decided(record: JobRecord | None, given: Any) -> Any:
    """What is to be written, without words for people that the code has chosen: others are as good."""
    told = plain(record)
    for part, words in (("exit", "message"), ("stop", "reason")):
        if told and part in told and (text := told[part].get(words)) and text not in json.dumps(given):
            del told[part][words]
    return told


def _claims() -> File:
    own = ParentLink(job="p-1", attempt=1)
    parent = job("running", id="p-1", started_at=NOW - 30)
    waiting = job(parent=own, spec={"id": "own"})
    cases: dict[str, tuple[JobRecord, int, JobRecord | None]] = {
        "it waits": (job(), 1, None),
        "it runs": (running(), 1, None),
        "at a later attempt": (job(attempt=2), 1, None),
        "too early": (job(not_before=NOW + 4.5), 1, None),
        "too early, as the clock said that was set back since": (
            job(attempt=2, not_before=NOW + 7204, history=[_past(1, NOW + 7000, NOW + 7200)]),
            2,
            None,
        ),
        "too early, by hosts whose clocks differ": (
            job(attempt=2, not_before=NOW + 62, history=[_past(1, NOW + 50, NOW + 58)]),
            2,
            None,
        ),
        "this host could not start it, 59 s ago": (job(avoid_hosts=["h2", "h1"], not_before=NOW - 59), 1, None),
        "this host could not start it, 60 s ago": (job(avoid_hosts=["h1"], not_before=NOW - 60), 1, None),
        "it has waited too long": (job(spec={"pending_timeout": 59}), 1, None),
        "its wait began with the last attempt's end": (
            job(
                attempt=2,
                spec={"pending_timeout": 59},
                history=[_past(1, NOW - 50, NOW - 40)],
            ),
            2,
            None,
        ),
        "its parent runs": (job(parent=own), 1, parent),
        "its parent has ended": (job(parent=own), 1, replace(parent, status="succeeded")),
        "its parent is gone": (job(parent=own), 1, None),
        "its parent is requeued": (job(parent=own), 1, replace(parent, status="pending", attempt=2)),
        "the same, with an id of its own": (waiting, 1, replace(parent, status="pending", attempt=2)),
        "its parent runs again, since 59 s": (waiting, 1, replace(parent, attempt=2, started_at=NOW - 59)),
        "its parent runs again, since 60 s": (waiting, 1, replace(parent, attempt=2, started_at=NOW - 60)),
        "detached": (job(parent=replace(own, detached=True)), 1, None),
    }
    return File(
        "input: a job, the attempt that its entry names, its parent (read after it) and the claimer's "
        "lease (`since` is now). expected: what the claimer writes, or the time until which it skips the "
        "entry (null: the entry is stale)",
        {case: _claimed(*given) for case, given in cases.items()},
    )


def _past(attempt: int, begun: float, ended: float, kind: str = "preempted") -> PastAttempt:
    return PastAttempt(
        attempt=attempt, agent="h1-0", host="h1", started_at=begun, ended_at=ended, exit=AttemptExit(kind=kind)
    )


def _claimed(record: JobRecord, attempt: int, parent: JobRecord | None) -> tuple[Any, Any]:
    family = stopping.judge_child(record, parent, NOW, SETTINGS.repair_interval)
    wanted = claim(record, attempt, LEASE, family)
    given = {"job": plain(record), "attempt": attempt, "parent": plain(parent), "lease": plain(LEASE)}
    return given, {"skip": wanted.until} if isinstance(wanted, Skip) else {"write": decided(wanted, given)}


def _ends() -> File:
    success = AttemptEnd(
        AttemptExit(kind="success", code=0, log_chunks=1), JobResult(encoding="json", value=42, size=2)
    )
    late = _otherwise(success, before=False)
    failure = AttemptEnd(AttemptExit(kind="exited", code=1))
    stop = StopRequest(at=NOW - 1, reason="no longer wanted")
    cases: dict[str, tuple[int, JobRecord, AttemptEnd]] = {
        "it succeeded": (1, running(), success),
        "it succeeded before the stop's SIGTERM": (1, running(stop=stop), success),
        "it succeeded after the stop's SIGTERM": (1, running(stop=stop), late),
        "a stopped task that fails by itself is stopped": (1, running(stop=stop), failure),
        "it failed, and has no retries": (1, running(), failure),
        "it failed, and has one": (1, running(spec={"max_retries_failure": 1}), failure),
        "preempted": (1, running(), AttemptEnd(AttemptExit(kind="preempted"))),
        "yielded": (1, running(), AttemptEnd(AttemptExit(kind="yielded"))),
        "preempted for the seventh time": (
            7,
            running(
                attempt=7,
                preemptions=6,
                history=[_past(n, NOW - 100 * (7 - n), NOW - 100 * (7 - n) + 20) for n in range(2, 7)],
                forgotten_seconds=10.0,
            ),
            AttemptEnd(AttemptExit(kind="preempted")),
        ),
        "preempted once too often": (
            1,
            running(spec={"max_retries_preemption": 1}, preemptions=1),
            AttemptEnd(AttemptExit(kind="preempted")),
        ),
        "this host could not start it": (1, running(avoid_hosts=["h2"]), AttemptEnd(AttemptExit(kind="start-failed"))),
        "the host failed while it ran": (1, running(), AttemptEnd(AttemptExit(kind="host-failed"))),
        "a program that is not there": (1, running(), AttemptEnd(AttemptExit(kind="exited", code=127))),
        "an actor crashed, and its holder stays": (
            1,
            running(spec={"actor": True, "max_retries_failure": 3}),
            _otherwise(failure, restart=True),
        ),
        "an actor crashed a second time within a minute": (
            2,
            running(
                spec={"actor": True, "max_retries_failure": 3},
                attempt=2,
                failures=1,
                history=[_past(1, NOW - 30, NOW - 11, "exited")],
            ),
            _otherwise(failure, restart=True),
        ),
        "an actor says that it failed": (
            1,
            running(spec={"actor": True, "max_retries_failure": 3}),
            AttemptEnd(AttemptExit(kind="exception", exception="ValueError")),
        ),
        "it is another's": (1, running(lease=JobLease(agent="h2-1", host="h2", since=NOW)), success),
        "it is at another attempt": (1, running(attempt=2), success),
        "it has ended": (1, job("stopped"), success),
    }
    made = {}
    for case, (attempt, record, ending) in cases.items():
        wanted = end_of_attempt(record, attempt, "h1-1", ending, NOW, SETTINGS)
        given = {
            "job": plain(record),
            "agent": "h1-1",
            "attempt": attempt,
            "exit": plain(ending.exit),
            "result": plain(ending.result),
            "ended_before_sigterm": ending.complete_before_stop,
            "restarts": ending.restart,
            "now": NOW,
        }
        made[case] = (
            given,
            {"discard": True} if wanted is None else {"write": decided(wanted, given)},
        )
    return File(
        "input: how an attempt ended, as its holder saw it; with the settings' defaults. expected: what "
        "the holder writes over the present record. `restarts`: the job is an actor's, and the holder "
        "trusts its leases and stays",
        made,
    )


def _otherwise(ending: AttemptEnd, before: bool = True, restart: bool = False) -> AttemptEnd:
    """The same end, seen otherwise."""
    return AttemptEnd(ending.exit, ending.result, before, restart)


def _budgets() -> File:
    runs: dict[str, tuple[dict[str, Any], list[str]]] = {
        "own failures": ({"max_retries_failure": 8}, ["exited"] * 9),
        "failed starts never end it": ({}, ["start-failed"] * 8),
        "a preemption keeps the failed starts": (
            {"max_retries_failure": 1},
            ["start-failed", "start-failed", "preempted", "start-failed", "exited", "start-failed"],
        ),
        "preemptions": ({"max_retries_preemption": 2}, ["preempted", "host-failed", "preempted"]),
        "three agents in a row died": ({"max_retries_failure": 1}, ["lost"] * 6),
        "not in a row": ({}, ["lost", "lost", "preempted", "lost", "lost", "start-failed", "lost"]),
    }
    made = {}
    for case, (spec, kinds) in runs.items():
        steps, now = [], NOW
        record = job(spec=spec)
        for number, kind in enumerate(kinds, 1):
            now = max(now, record.not_before) + 100
            host = f"h{number}"
            record = replace(
                record, status="running", lease=JobLease(agent=f"{host}-1", host=host, since=now), started_at=now
            )
            ended = _ended(record, kind, host, now)
            steps.append({"kind": kind, "host": host, "after": _counters(ended, now)})
            record = ended
        made[case] = (
            {"spec": spec, "ends": [{"kind": s["kind"], "host": s["host"]} for s in steps]},
            [s["after"] for s in steps],
        )
    return File(
        "input: a job's budgets and the ends of its attempts in order, each on another host and 100 s "
        "after the one before (`lost`: its agent died). expected: fields of the record after each end; "
        "`wait`: seconds until not_before",
        made,
    )


def _ended(record: JobRecord, kind: str, host: str, now: float) -> JobRecord:
    if kind == "lost":
        after = requeue_lost(record, f"{host}-1", now, SETTINGS)
        assert after is not None
        return after
    after_end = end_of_attempt(record, record.attempt, f"{host}-1", AttemptEnd(AttemptExit(kind=kind)), now, SETTINGS)
    assert isinstance(after_end, JobRecord)
    return after_end


def _counters(record: JobRecord, now: float) -> dict[str, Any]:
    told: dict[str, Any] = {
        name: getattr(record, name)
        for name in ("status", "attempt", "failures", "preemptions", "agent_deaths", "start_failures", "avoid_hosts")
    }
    return told | ({"wait": record.not_before - now} if record.status == "pending" else {})


def _stops() -> File:
    cases = {
        "it waits": job(),
        "it was not admitted yet": job("unadmitted"),
        "it runs": running(),
        "it runs, and was asked before": running(stop=StopRequest(at=NOW - 5, reason="first")),
        "it runs in nobody's hands": job("running"),
        "it has ended": job("failed"),
        "in a status that is not known": job("hovering"),
    }
    made = {}
    for case, record in cases.items():
        wanted = request_stop(record, NOW, "no longer wanted")
        made[case] = {"job": plain(record), "now": NOW, "reason": "no longer wanted"}, plain(wanted)
    return File("input: a job that a user asks to stop. expected: what is written (null: nothing)", made)


def _entries() -> File:
    holder = AgentRecord(id="h1-1", host="h1", pool="default", holdings={"a-1": Holding(attempt=1, phase="running")})
    silent = replace(holder, holdings={})
    entry = entry_of(job())
    cases: dict[str, tuple[PendingKey, JobRecord | None, AgentRecord | None, float]] = {
        "no record yet": (entry, None, None, NOW),
        "no record for long": (entry, None, None, NOW + 541),
        "it waits": (entry, job(), None, NOW),
        "it waits at a later attempt": (entry, job(attempt=2), None, NOW),
        "it was moved to another pool": (entry, job(spec={"pool": "big"}), None, NOW),
        "it runs, and its holder lists it": (entry, running(), holder, NOW),
        "it runs, and its holder does not list it yet": (entry, running(), silent, NOW),
        "it runs, and its holder is dead": (entry, running(), replace(holder, state="dead"), NOW),
        "it runs, and there is no such agent": (entry, running(), None, NOW),
        "it has ended": (entry, job("failed"), None, NOW),
        "in a status that is not known": (entry, job("hovering"), None, NOW),
    }
    made = {}
    for case, (found, record, agent, now) in cases.items():
        care = action_for(found, record, agent, now, SETTINGS)
        made[case] = {"entry": found.key(), "job": plain(record), "agent": plain(agent), "now": now}, care.name.lower()
    return File(
        "input: an entry of the index, its job and the agent of the job's lease. expected: the "
        "reconciler's action; renew: create the entry that the record requires, then delete this one; "
        "requeue: end the attempt as lost",
        made,
    )


FILES = {
    "claims": _claims,
    "ends": _ends,
    "budgets": _budgets,
    "stops": _stops,
    "entries": _entries,
}
