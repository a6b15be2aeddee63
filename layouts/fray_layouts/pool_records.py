"""The objects of worker pools with a queue: the pool's record, and batches of task outcomes."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from fray_layouts.codec import plain_text
from fray_layouts.errors import Malformed
from fray_layouts.records import Record


class PoolRecord(Record, kw_only=True):
    """`pool.json`: the state that a later driver needs to continue with the pool.

    Attributes:
        used_at: when a driver last attached, had been attached for another day, or changed `jobs`; storage's clock.
        jobs: ids of the worker jobs that were started and are not known to have ended.
    """

    created_at: float = 0.0
    used_at: float = 0.0
    jobs: list[str] = msgspec.field(default_factory=list)


class OutcomeKind(StrEnum):
    """The kind of a task's step: `TaskOutcome.kind`."""

    SUBMITTED = "submitted"
    """A driver has pushed the task."""
    VALUE = "value"
    """The task returned."""
    ITEM = "item"
    """The generator yielded an item."""
    END = "end"
    """The generator ended."""
    ERROR = "error"
    """The task raised an exception."""
    CANCELLED = "cancelled"
    """A driver has cancelled the task before a worker took it."""
    DEAD_LETTER = "dead-letter"
    """The pool gave the task up because the processes that ran it died."""


class TaskOutcome(msgspec.Struct, omit_defaults=True, array_like=True):
    """One step of a task. An object of outcomes is a MessagePack array of these.

    Attributes:
        task: the task's id: the key that the driver gave it, with the run's number added by `task_id` from the second
            run.
        kind: an `OutcomeKind`; Fray ignores one that this version does not know.
        number: of an item, counted from 0; of a submission, 1 if the task is a generator.
        data: the pickled value or exception; for a dead letter, or an exception that cannot be pickled, its text; for a
            submission, the `ItemPlace` of the task in the queue, as text.
    """

    task: str
    kind: str
    number: int = 0
    data: bytes = b""


_TRY_MARK = "\x1f"
"""Separates a key from the number of the run: the ASCII unit separator, which nobody uses in a key."""


def task_id(key: str, run: int) -> str:
    """The id of the task that runs `key` for the `run`-th time, counted from 1; each later run follows a failed one."""
    return key if run == 1 else f"{key}{_TRY_MARK}{run}"


def key_and_run(task: str) -> tuple[str, int]:
    """The inverse of `task_id`; a text that `task_id` did not make is a key in its first run."""
    key, _, run = task.rpartition(_TRY_MARK)
    # A run has at most nine digits; a longer number is part of a key that a driver chose.
    return (key, int(run)) if key and run.isascii() and run.isdigit() and len(run) < 10 else (task, 1)


_encoder = msgspec.msgpack.Encoder(enc_hook=plain_text)
_decoder = msgspec.msgpack.Decoder(list[TaskOutcome])


def encode_outcomes(outcomes: Iterable[TaskOutcome]) -> bytes:
    return _encoder.encode(list(outcomes))


def decode_outcomes(data: bytes) -> list[TaskOutcome]:
    """Decode one object of outcomes. Raises Malformed if the bytes are something else."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
