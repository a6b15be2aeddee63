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
        task: its id: the key that the driver gave it, which `task_id` has numbered if the key was run again.
        kind: an `OutcomeKind`; one that this version does not know is ignored.
        number: of an item, from 0; of a submission, 1 if the task is a generator.
        data: the pickled value or exception; of a dead letter and of an exception that cannot be pickled, its text.
    """

    task: str
    kind: str
    number: int = 0
    data: bytes = b""


_TRY_MARK = "\x1f"
"""Between a key and the number of the run: the unit separator, which nobody puts into a key."""


def task_id(key: str, run: int) -> str:
    """The id of the task that runs `key` for the `run`-th time, from 1, because the one before has failed."""
    return key if run == 1 else f"{key}{_TRY_MARK}{run}"


def key_and_run(task: str) -> tuple[str, int]:
    """The inverse of `task_id`; what it did not make is a key that ran once."""
    key, _, run = task.rpartition(_TRY_MARK)
    return (key, int(run)) if key and run.isascii() and run.isdigit() and len(run) < 10 else (task, 1)


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
