"""How the end of an actor's process changes its job."""

from __future__ import annotations

import pytest

from fray_coordinator.protocol.commit import AttemptEnd, end_of_attempt
from fray_layouts.records import (
    AttemptExit,
    ClusterSettings,
    JobLease,
    JobRecord,
)
from fray_layouts.spec_parsing import parse_spec

NOW = 5000.0


def ended(kind: str, actor: bool) -> JobRecord:
    spec = {"name": "a", "entrypoint": {"command": ["x"]}, "actor": actor, "max_retries_failure": 5}
    lease = JobLease(agent="me", host="mine", since=NOW - 10)
    job = JobRecord(id="a-1", spec=parse_spec(spec), status="running", lease=lease, started_at=NOW - 10)
    result = end_of_attempt(job, 1, "me", AttemptEnd(AttemptExit(kind=kind), restart=actor), NOW, ClusterSettings())
    assert isinstance(result, JobRecord)
    return result


def test_an_actor_that_raises_has_failed_for_good() -> None:
    assert ended("exception", actor=True).status == "failed"
    assert ended("exception", actor=False).status == "pending"


@pytest.mark.parametrize("kind", ["signalled", "exited", "out-of-memory"])
def test_an_actor_whose_process_crashed_is_restarted_where_it_was(kind: str) -> None:
    job = ended(kind, actor=True)
    assert (job.status, job.attempt) == ("running", 2)
