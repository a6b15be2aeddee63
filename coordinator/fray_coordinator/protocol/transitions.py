"""The status of a job: all changes of it, in one table. Nothing else assigns a status.

**Invariant.** No transition leaves a terminal status, and attempts only grow.

**Unsafe sequence.**

1. Writers A and B both read a job that is RUNNING.
2. A commits it as SUCCEEDED.
3. B moves it to PENDING, from a status that it has already left.

**Why this cannot happen.** `transition` looks up the status and the event, and raises if the table does not have them.
Its result is written on condition of the version from which it was computed.

    UNADMITTED --admit--> PENDING --claim--> RUNNING --succeed--> SUCCEEDED
        |                  |  ^                |  |
        |                  |  +----requeue-----+  +----fail-----> FAILED
        |                  |   (attempt + 1)   |
        +------stop--------+-------stop--------+----------------> STOPPED

A restart by the holder goes from RUNNING to RUNNING, and raises the attempt, too. A gang waits in GATHERING instead of
PENDING: the pass starts it there, and nobody claims it. A regather takes it from RUNNING back to GATHERING with the
next attempt.
"""

from enum import StrEnum
from typing import Any

import msgspec

from fray_layouts.records import JobRecord


class Status(StrEnum):
    """The statuses that this version knows. If a record holds another one, nothing touches it."""

    UNADMITTED = "unadmitted"
    PENDING = "pending"
    GATHERING = "gathering"
    """What PENDING is for other jobs: a gang waits, and no single agent may claim it."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class Event(StrEnum):
    """The events that change a job's status."""

    ADMIT = "admit"
    CLAIM = "claim"
    GATHER = "gather"
    START = "start"
    REQUEUE = "requeue"
    REGATHER = "regather"
    RESTART = "restart"
    SUCCEED = "succeed"
    FAIL = "fail"
    STOP = "stop"


TRANSITIONS: dict[tuple[Status, Event], Status] = {
    (Status.UNADMITTED, Event.ADMIT): Status.PENDING,
    (Status.UNADMITTED, Event.STOP): Status.STOPPED,
    (Status.UNADMITTED, Event.GATHER): Status.GATHERING,
    (Status.GATHERING, Event.START): Status.RUNNING,
    (Status.GATHERING, Event.STOP): Status.STOPPED,
    (Status.RUNNING, Event.REGATHER): Status.GATHERING,
    (Status.PENDING, Event.CLAIM): Status.RUNNING,
    (Status.PENDING, Event.STOP): Status.STOPPED,
    (Status.RUNNING, Event.REQUEUE): Status.PENDING,
    (Status.RUNNING, Event.RESTART): Status.RUNNING,
    (Status.RUNNING, Event.SUCCEED): Status.SUCCEEDED,
    (Status.RUNNING, Event.FAIL): Status.FAILED,
    (Status.RUNNING, Event.STOP): Status.STOPPED,
}

TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.STOPPED})
"""The statuses in which a job has ended for good."""
_WAITING = frozenset({Status.UNADMITTED, Status.PENDING, Status.GATHERING})
"""The statuses in which a job waits for its current attempt to start."""
_NEW_ATTEMPT = frozenset({Event.REQUEUE, Event.REGATHER, Event.RESTART})
"""The events that raise the attempt."""


class IllegalTransition(AssertionError):
    """A decision asked for a transition that is not in the table. This is a fault of Fray, not of its user."""


def is_terminal(job: JobRecord) -> bool:
    """Whether the job has ended for good."""
    return job.status in TERMINAL


def is_waiting(job: JobRecord) -> bool:
    """Whether the job waits for its current attempt to be started."""
    return job.status in _WAITING


def transition(job: JobRecord, event: Event, **changes: Any) -> JobRecord:
    """The record after `event`, with `changes` to its other fields. A requeue, regather or restart raises the attempt.

    Raises IllegalTransition: the table has no such transition.
    """
    try:
        status = TRANSITIONS[Status(job.status), event]
    except (KeyError, ValueError):
        raise IllegalTransition(f"{event} in status {job.status!r} of job {job.id}") from None
    attempt = job.attempt + 1 if event in _NEW_ATTEMPT else job.attempt
    return msgspec.structs.replace(job, status=str(status), attempt=attempt, **changes)
