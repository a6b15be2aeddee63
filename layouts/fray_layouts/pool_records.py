"""The objects of worker pools with a queue: a pool's record, and outcomes of its tasks, many in one object."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from fray_layouts.codec import plain_text
from fray_layouts.errors import Malformed
from fray_layouts.records import Record


class PoolRecord(Record, kw_only=True):
    """`pool.json`: what a later driver needs to go on with the pool.

    Attributes:
        used_at: when a driver last attached, stayed for a day, or changed `jobs`; storage's clock.
        jobs: ids of the worker jobs that were started and not yet found ended.
    """

    created_at: float = 0.0
    used_at: float = 0.0
    jobs: list[str] = msgspec.field(default_factory=list)


class OutcomeKind(StrEnum):
    """`TaskOutcome.kind`."""

    SUBMITTED = "submitted"
    """A driver has pushed the task."""
    VALUE = "value"
    """The task returned."""
    ITEM = "item"
    """It yielded."""
    END = "end"
    """It yielded all that it had."""
    ERROR = "error"
    """It raised."""
    DEAD_LETTER = "dead-letter"
    """It was given up, as the processes that ran it died."""


class TaskOutcome(msgspec.Struct, omit_defaults=True, array_like=True):
    """One step of a task, in an object of many; the object is MessagePack, an array of these.

    Attributes:
        task: the key that the driver gave it.
        kind: an `OutcomeKind`; one that this version does not know is ignored.
        number: of an item, from 0; of a submission, 1 if the task is a generator.
        data: the pickled value or exception; of a dead letter and of an exception that cannot be pickled, its text.
    """

    task: str
    kind: str
    number: int = 0
    data: bytes = b""


_encoder = msgspec.msgpack.Encoder(enc_hook=plain_text)
_decoder = msgspec.msgpack.Decoder(list[TaskOutcome])


def encode_outcomes(outcomes: Iterable[TaskOutcome]) -> bytes:
    return _encoder.encode(list(outcomes))


def decode_outcomes(data: bytes) -> list[TaskOutcome]:
    """The outcomes in one object. Raises Malformed for what is no such object."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
