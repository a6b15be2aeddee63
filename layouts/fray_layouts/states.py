"""The states that records name.

A record may hold one that this version does not know. It is kept as it is and left alone, so the fields are text: that
costs decoding nothing, where an enum would refuse the whole record.
"""

from enum import StrEnum


class AgentState(StrEnum):
    """The state of an agent: `AgentRecord.state`."""

    LIVE = "live"
    DEAD = "dead"
    """Declared by an observer."""
    LEFT = "left"
    """It ended by itself, with nothing held."""


class HoldingPhase(StrEnum):
    """The phase of a lease in its holder's heartbeat: `Holding.phase`."""

    CLAIMING = "claiming"
    """The claim was sent, or is about to be, and is not known to be applied."""
    RUNNING = "running"
    ENDING = "ending"
    """Until the record says that the attempt has ended, and the next one's index entry exists."""
    RESERVED = "reserved"
    """The room of bundles is kept for their owner: a vote for the round that the holding names."""
    REFUSED = "refused"
    """The agent can never have the bundles of that round."""


class ExitKind(StrEnum):
    """The kind of an attempt's end: `AttemptExit.kind`."""

    SUCCESS = "success"
    EXITED = "exited"
    """With an exit code other than 0, or with a result that cannot be read."""
    SIGNALLED = "signalled"
    OUT_OF_MEMORY = "out-of-memory"
    LIMIT_EXCEEDED = "limit-exceeded"
    """It used more disk, or had more processes, than it may."""
    TIMEOUT = "timeout"
    EXCEPTION = "exception"
    """What a callable raised."""
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    START_FAILED = "start-failed"
    HOST_FAILED = "host-failed"
    """The host failed while it ran."""
    ENVIRONMENT_FAILED = "environment-failed"
    """The job's packages or image cannot be had anywhere: the job's own fault, which no retry mends."""
    LOST = "lost"
    """Its agent died."""
    TOO_LARGE = "too-large"
    """Its result, or its outputs."""


class StopOrigin(StrEnum):
    """The origin of a stop: `StopRequest.by`."""

    USER = "user"
    PARENT = "parent"
    EXPIRED = "expired"
    """Nobody: it was not started within its `pending_timeout`."""
    RESERVATION = "reservation"
    """The end of the reservation or the launch group that it was in."""


class ReservationState(StrEnum):
    """The state of a reservation: `ReservationRecord.state`."""

    FORMING = "forming"
    HELD = "held"
    """Its first `low` bundles were all there at once; it stays so until it ends."""
    ENDED = "ended"


class ReservationKind(StrEnum):
    """The kind of a reservation: `ReservationRecord.kind`."""

    RESERVATION = "reservation"
    GROUP = "group"
    """Its bundles are bound to the jobs that were launched together."""


class NameState(StrEnum):
    """The state of a name: `NameRecord.state`."""

    HELD = "held"
    FREE = "free"


class MachineState(StrEnum):
    """The state of a machine: `MachineRecord.state`."""

    WANTED = "wanted"
    """An intent: the provider was not called yet."""
    CREATING = "creating"
    """The provider may have been called."""
    UP = "up"
    DRAINING = "draining"
    DELETING = "deleting"
    """The provider may have been told to remove it."""
    GONE = "gone"
    """The provider no longer has it."""
