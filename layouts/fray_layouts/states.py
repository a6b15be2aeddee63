"""The states and kinds that records hold as text, and the hints to agents.

A record may hold a value that this version does not know; Fray then keeps the value and leaves the object alone. The
records' fields are therefore `str`: an enum would make the whole record unreadable.
"""

from enum import StrEnum


class AgentState(StrEnum):
    """The state of an agent: `AgentRecord.state`."""

    LIVE = "live"
    DEAD = "dead"
    """An observer declared the agent dead."""
    LEFT = "left"
    """The agent ended by itself and held nothing."""


class Hint(StrEnum):
    """A message straight to an agent that there is something to do."""

    SUBMITTED = "submitted"
    """Something was submitted: look for work now."""
    STOPPED = "stopped"
    """A job may have been stopped: read the records of the jobs that you run."""
    PLACEMENTS = "placements"
    """Read the pool's plan and the owners in it. The agent that runs the pass then reads their members."""
    ALIVE = "alive"
    """An agent accepts this only if it is alive and vouches for its replicas of gangs; see `Membership.vouches`."""


class HoldingPhase(StrEnum):
    """The phase of a lease in its holder's heartbeat: `Holding.phase`."""

    CLAIMING = "claiming"
    """The agent has sent the claim, or is about to, and does not know yet that it was applied."""
    RUNNING = "running"
    ENDING = "ending"
    """The attempt is over; until the job's record says so and the next attempt's index entry exists."""
    RESERVED = "reserved"
    """The agent keeps room for bundles: a vote for the round that the holding names."""
    REFUSED = "refused"
    """The agent can never run the bundles of that round."""


class ExitKind(StrEnum):
    """The kind of an attempt's end: `AttemptExit.kind`."""

    SUCCESS = "success"
    EXITED = "exited"
    """The process ended with an exit code other than 0, or its result cannot be read."""
    SIGNALLED = "signalled"
    OUT_OF_MEMORY = "out-of-memory"
    LIMIT_EXCEEDED = "limit-exceeded"
    """The task used more disk, or had more processes, than it may."""
    TIMEOUT = "timeout"
    EXCEPTION = "exception"
    """The callable raised an exception."""
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    YIELDED = "yielded"
    """The job's parent waited for the room that the job used, and the job for its parent."""
    START_FAILED = "start-failed"
    HOST_FAILED = "host-failed"
    """The host failed while the attempt ran."""
    ENVIRONMENT_FAILED = "environment-failed"
    """No host can make the job's environment: workspace, packages, image, version of Python. A retry does not help."""
    LOST = "lost"
    """The attempt's agent died."""
    TOO_LARGE = "too-large"
    """The result or the outputs are too large."""


class StopOrigin(StrEnum):
    """The origin of a stop: `StopRequest.by`."""

    USER = "user"
    PARENT = "parent"
    EXPIRED = "expired"
    """The job was not started within its `pending_timeout`; nobody asked for the stop."""
    RESERVATION = "reservation"
    """The reservation or the launch group of the job has ended."""


class ReservationState(StrEnum):
    """The state of a reservation: `ReservationRecord.state`."""

    FORMING = "forming"
    HELD = "held"
    """Its first `low` bundles all had room at the same time. It stays in this state until it ends."""
    ENDED = "ended"


class ReservationKind(StrEnum):
    """The kind of a reservation: `ReservationRecord.kind`."""

    RESERVATION = "reservation"
    GROUP = "group"
    """A launch group: its bundles are bound to the jobs that were launched together."""


class NameState(StrEnum):
    """The state of a name: `NameRecord.state`."""

    HELD = "held"
    FREE = "free"


class MachineState(StrEnum):
    """The state of a machine: `MachineRecord.state`."""

    WANTED = "wanted"
    """The record states the intent; nobody has called the provider yet."""
    CREATING = "creating"
    """Somebody may have called the provider."""
    UP = "up"
    DRAINING = "draining"
    DELETING = "deleting"
    """Somebody may have asked the provider to remove it."""
    STRAY = "stray"
    """The provider lists it, and its record was missing."""
    GONE = "gone"
    """The provider no longer lists it."""
