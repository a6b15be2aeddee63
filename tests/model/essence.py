"""The essence of a job's record and an agent's record, as small hashable values, and the conversion back to records."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.records import (
    AgentRecord,
    Holding,
    JobLease,
    JobRecord,
    StopRequest,
)
from fray_layouts.spec_parsing import parse_spec

SPEC = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "max_retries_failure": 1})
NOW = 1000.0


class Job(NamedTuple):
    """The essence of the job's record."""

    status: str = "pending"
    attempt: int = 1
    holder: str = ""
    failures: int = 0
    preemptions: int = 0
    deaths: int = 0
    stop: bool = False

    @property
    def over(self) -> bool:
        return is_terminal(record(self))


class Beat(NamedTuple):
    """The essence of an agent's record: its state, the attempt of the job that it lists (0: none), unread mail."""

    state: str = "live"
    listed: int = 0
    reaped: bool = False
    mail: bool = False


@cache
def record(job: Job) -> JobRecord:
    """The real record of which `job` is the essence."""
    return JobRecord(
        id="j",
        spec=SPEC,
        status=job.status,
        attempt=job.attempt,
        lease=JobLease(agent=job.holder, host=job.holder, since=NOW) if job.holder else None,
        failures=job.failures,
        preemptions=job.preemptions,
        agent_deaths=job.deaths,
        stop=StopRequest(at=NOW) if job.stop else None,
    )


def essence(job: JobRecord) -> Job:
    holder = job.lease.agent if job.lease else ""
    return Job(job.status, job.attempt, holder, job.failures, job.preemptions, job.agent_deaths, job.stop is not None)


@cache
def agent_record(name: str, seen: Beat) -> AgentRecord:
    listed = {"j": Holding(attempt=seen.listed)} if seen.listed else {}
    return AgentRecord(
        id=name, host=name, pool="default", state=seen.state, holdings=listed, reaped=seen.reaped, mail=seen.mail
    )


def agent_essence(agent: AgentRecord) -> Beat:
    listed = agent.holdings["j"].attempt if agent.holdings else 0
    return Beat(agent.state, listed, agent.reaped, agent.mail)
