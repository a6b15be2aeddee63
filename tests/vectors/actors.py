"""What is decided about the names of actors: records in, records out."""

from __future__ import annotations

from msgspec.structs import replace

from fray_coordinator.protocol.naming import announced, holder_of, taken_for
from fray_layouts.records import EndpointRecord, JobRecord, NameRecord, StopRequest
from tests.vectors.form import NOW, File, plain
from tests.vectors.jobs import job, running


def _names() -> File:
    held = NameRecord(job="a-1", incarnation=3, attempt=2, since=NOW - 59)
    cases: dict[str, tuple[NameRecord | None, JobRecord | None, float]] = {
        "never taken": (None, None, NOW),
        "given up": (replace(held, state="free"), None, NOW),
        "its job runs": (held, running(), NOW),
        "its job has ended": (held, job("failed"), NOW),
        "its job is to be stopped": (held, running(stop=StopRequest(at=NOW)), NOW),
        "its job is not there yet": (held, None, NOW),
        "its job did not come": (held, None, NOW + 2),
        "a queue's": (replace(held, job=""), None, NOW),
    }
    made = {}
    for case, (found, holder, now) in cases.items():
        hold = holder_of(found, holder, now)
        write = plain(taken_for(found, "b-1", now)) if hold.name == "FREE" else None
        made[case] = (
            {"name": plain(found), "job": plain(holder), "for": "b-1", "now": now},
            {
                "hold": hold.name.lower(),
                "write": write,
            },
        )
    return File(
        "input: a name's record and that of its job (read after it). expected: who has the name, and the "
        "record that takes it for b-1",
        made,
    )


def _announcements() -> File:
    held = NameRecord(job="a-1", incarnation=3, attempt=2, since=NOW)
    cases = {
        "a later attempt": (held, 3),
        "the same attempt": (held, 2),
        "an earlier attempt": (held, 1),
        "the next incarnation has begun": (replace(held, incarnation=4), 3),
        "it was given up": (replace(held, state="free"), 3),
    }
    made = {}
    for case, (found, attempt) in cases.items():
        endpoint = EndpointRecord(
            namespace="a",
            name="store",
            actor_id="a-1",
            job="a-1",
            attempt=attempt,
            incarnation=3,
            nonce="n",
            address="h:1",
        )
        made[case] = {"name": plain(found), "endpoint": plain(endpoint)}, plain(announced(found, endpoint))
    return File(
        "input: a name's record and the endpoint to announce under it. expected: what is written into the "
        "name's record first (null: the process must end)",
        made,
    )


FILES = {
    "names": _names,
    "announcements": _announcements,
}
