"""Why a job waits: the sentence names the missing resource, the agent that comes closest, and the remedy."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fray_coordinator.jobs.why_waiting import reasons_by_job, why_stuck, why_waiting, with_claims
from fray_layouts.records import AgentRecord, AttemptExit, Holding, JobLease, JobRecord, PastAttempt, Resources
from fray_layouts.spec_parsing import parse_spec

NOW = 1000.0


def job(name: str = "j", **fields: Any) -> JobRecord:
    spec = parse_spec({"name": name, "entrypoint": {"command": ["x"]}, **fields})
    return JobRecord(id=f"{name}-1", spec=spec, status="pending", submitted_at=NOW)


def agent(name: str, free: int = 0, **fields: Any) -> AgentRecord:
    """An agent of four cores, of which this many thousandths are free."""
    capacity = Resources(cpu=4000, memory=16 * 10**9)
    left = Resources(cpu=free, memory=16 * 10**9)
    base: dict[str, Any] = {"id": name, "host": "h", "pool": "default", "capacity": capacity, "free": left}
    return AgentRecord(**(base | fields))


H100 = {"kind": "gpu", "variant": "H100", "count": 8}


@dataclass
class Case:
    live: list[AgentRecord]
    says: str
    wants: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    "case",
    [
        Case([], "no live agent in pool default; start one with `fray agent --pool default`"),
        Case(
            [agent("a", pool="gpu"), agent("b", pool="tpu")],
            "no live agent in pool default; start one with `fray agent --pool default`; "
            "there are agents in pool gpu, tpu",
        ),
        Case(
            [agent("a"), agent("b", capacity=Resources(cpu=8000, memory=128 * 10**9)), agent("c")],
            "no live agent of pool default could ever run it: b comes closest of 3 (gpu-h100: 8 wanted, none here); "
            "ask for less, or start an agent that has it",
            {"resources": {"device": H100, "cpu": 8, "memory": "64GB"}},
        ),
        Case(
            [agent("a", 500), agent("b", 900, holdings={"x-1": Holding(attempt=1)}), agent("c", 800)],
            "no agent can take it now: b comes closest of 3 (1 job there; cpu: 1 core wanted, 0.9 free)",
        ),
        Case([agent("a", 4000, problem="its disk is full")], "no agent can take it now: a (its disk is full)"),
        Case(
            [agent("a", 4000, unfit=True, problem="a chip is held")],
            "each agent that could run it is unfit: a (a chip is held)",
        ),
        Case([agent("a", 4000, drain=True)], "each agent of pool default that could run it is drained: a"),
        Case([agent("a", 4000), agent("b", 500)], "a has room and should claim it soon"),
    ],
)
def test_the_reason_names_the_closest_agent_and_its_shortage(case: Case) -> None:
    assert why_waiting(job(**case.wants), case.live, NOW) == case.says


def test_many_jobs_are_judged_by_kind_and_one_that_failed_has_its_own_time() -> None:
    later = msgspec.structs.replace(job("later"), not_before=NOW + 7.0, attempt=3)
    reasons = reasons_by_job([job("one"), job("two"), later], [agent("a", 500)], NOW)
    assert reasons["one-1"] == reasons["two-1"] == "no agent can take it now: a (cpu: 1 core wanted, 0.5 free)"
    assert reasons["later-1"] == "it is tried again in 7 s, after attempt 2 ended"


def test_a_host_that_could_not_start_the_job_is_told_with_the_reason() -> None:
    exit = AttemptExit(kind="start-failed", message="the host could not start the task: uv failed on this host")
    tried = PastAttempt(attempt=1, agent="a", host="h", started_at=NOW, ended_at=NOW, exit=exit)
    failed = msgspec.structs.replace(job("tried"), attempt=2, avoid_hosts=["h"], not_before=NOW + 5, history=[tried])
    ended = "attempt 1 ended: start-failed: the host could not start the task: uv failed on this host"
    agents = [agent("a", 4000)]
    assert why_waiting(failed, agents, NOW) == f"it is tried again in 5 s, after {ended}"
    assert "a has room" in why_waiting(failed, agents, NOW - 100), "the storage's clock was set back"
    assert why_waiting(failed, agents, NOW + 6) == (
        "no agent can take it now: a (its host could not start the job and waits a minute for another host to take "
        f"it); {ended}"
    )
    assert why_waiting(failed, [*agents, agent("b", 4000, host="i")], NOW + 6) == (
        f"b has room and should claim it soon; {ended}"
    )
    reasons = reasons_by_job([failed, job()], agents, NOW + 66)
    assert set(reasons.values()) == {"a has room and should claim it soon"}


def test_control_characters_in_agents_records_are_escaped() -> None:
    told = why_waiting(job(), [agent("a", 4000, problem="\x1b[2J")], NOW)
    assert "\x1b" not in told


def test_a_running_job_whose_agent_is_silent_says_so() -> None:
    running = msgspec.structs.replace(job(), status="running", lease=JobLease(agent="a", host="h", since=NOW))
    assert why_stuck(running, [agent("a")]) == ""
    assert why_stuck(running, [agent("b")]).startswith("its agent a was not heard of lately: it has died, ")
    assert why_stuck(msgspec.structs.replace(running, ended_at=NOW), []) == ""
    assert why_stuck(job(), []) == ""


def test_jobs_that_were_claimed_since_the_last_heartbeat_take_room() -> None:
    waits = job("waits")
    claimed = msgspec.structs.replace(job("claimed"), status="running", lease=JobLease(agent="a", host="h", since=NOW))
    before = agent("a", 1000)
    assert why_waiting(waits, [before], NOW) == "a has room and should claim it soon"
    says = "no agent can take it now: a (1 job there; cpu: 1 core wanted, 0 free)"
    assert why_waiting(waits, with_claims([before], [waits, claimed]), NOW) == says
    listed = agent("a", 0, holdings={claimed.id: Holding(attempt=1)})
    assert with_claims([listed], [claimed]) == [listed]
    elsewhere = msgspec.structs.replace(claimed, lease=JobLease(agent="gone", host="h", since=NOW))
    assert with_claims([before], [elsewhere]) == [before]
