"""What the end of an actor's process means for its job."""

from __future__ import annotations

import pytest

from fray_coordinator.protocol.finish import Ending, finish
from fray_layouts.records import Exit, JobRecord, Lease, Settings
from fray_layouts.spec import parse_spec

NOW = 5000.0


def ended(kind: str, actor: bool) -> JobRecord:
    spec = {"name": "a", "entrypoint": {"command": ["x"]}, "actor": actor, "max_retries_failure": 5}
    lease = Lease(agent="me", host="mine", since=NOW - 10)
    job = JobRecord(id="a-1", spec=parse_spec(spec), status="running", lease=lease, started_at=NOW - 10)
    result = finish(job, 1, "me", Ending(Exit(kind=kind), restart=actor), NOW, Settings())
    assert isinstance(result, JobRecord)
    return result


def test_an_actor_that_raises_has_failed_for_good() -> None:
    assert ended("exception", actor=True).status == "failed"
    assert ended("exception", actor=False).status == "pending"


@pytest.mark.parametrize("kind", ["signalled", "exited", "out-of-memory"])
def test_an_actor_whose_process_crashed_is_restarted_where_it_was(kind: str) -> None:
    job = ended(kind, actor=True)
    assert (job.status, job.attempt) == ("running", 2)
