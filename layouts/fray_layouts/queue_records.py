"""The objects of a queue, and of a worker pool with a queue: settings, segments, leases, and outcomes of tasks.

A segment is immutable: one line of JSON, the header, then the bytes of its items one after the other. A lease is a
record beside its segment, changed by compare-and-swap; only the lease says which items are done.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

import msgspec

from fray_layouts import codec
from fray_layouts.bounds import Count, Seconds, Time
from fray_layouts.codec import plain_text
from fray_layouts.errors import Malformed
from fray_layouts.records import Record

QUEUE_LAYOUT = 1
"""Raised when the objects of a queue change in such a way that an older Fray would do harm."""


class QueueRecord(Record, kw_only=True):
    """`queue.json`: the settings that all participants of a queue share.

    Attributes:
        layout: version of this contract.
        quarantine: seconds; the lease of a finished segment stays for half of it after the time in the name.
        max_deliveries: an item that failed this often (its process died, or it was released as failed) becomes a dead
            letter; 0 for never. When a process dies, nobody knows which of its items killed it, so that delivery does
            not count. Later deliveries of these items do; each runs alone in its process.
    """

    layout: int = QUEUE_LAYOUT
    quarantine: Seconds = 60.0
    max_deliveries: Count = 5
    created_at: Time = 0.0


class QueueLease(Record, kw_only=True):
    """`<segment>~lease`: the owner of a segment, who may hand out its items, and the items that are done.

    Attributes:
        owner: eight base-32 digits of the consumer, then a nonce of the claim, never used again; "" when released.
        holder: host and process, for people.
        timeout: seconds after which an observer that saw no change may take the segment over.
        claims: how often the segment was claimed.
        suspect: a claim ended without a release, so one of the items may have killed its process.
        done: hexadecimal number; the bit of value 2**i is item i.
        failures: by item, the failures that count towards the maximum; for an item of a suspect segment, every delivery
            counts when it starts.
        dead_lettered_at: by item, the time in the name of its dead letter.
        problem: why the segment is set aside: nobody can read it, so nobody can hand out its items.
    """

    owner: str = ""
    holder: str = ""
    timeout: Seconds = 60.0
    claims: Count = 1
    suspect: bool = False
    done: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$")] = "0"
    failures: dict[str, Count] = msgspec.field(default_factory=dict)
    dead_lettered_at: dict[str, Time] = msgspec.field(default_factory=dict)
    problem: str = ""


class FinishedSegments(msgspec.Struct, kw_only=True):
    """`finished/<time><token>`: names of finished segments whose leases may have been deleted.

    Attributes:
        segments: their names.
    """

    segments: list[str]


class Receipt(msgspec.Struct, kw_only=True):
    """`receipts/<consumer>/<time><token>`: segments whose items are all done, although their leases do not say so.

    Attributes:
        done: by claim (the `owner` of the leases), the segments that were finished under it.
    """

    done: dict[str, list[str]]


class DeadLetterOrigin(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The origin of a dead letter: the reason, and the segment and item it came from."""

    reason: str
    segment: str
    item: int
    deliveries: int


class SegmentHeader(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The first line of a segment.

    Attributes:
        encoding: of every item: "pickle" (cloudpickle, protocol 5) or "json".
        sizes: bytes of each item, in order; 0 for an item that is an object of its own.
        large: items that are objects of their own, `large/.../<segment>~<item>`.
        dead_letter: only in a dead letter, which is a segment of one item.
    """

    encoding: str
    sizes: list[Count]
    large: list[Count] = msgspec.field(default_factory=list)
    dead_letter: DeadLetterOrigin | None = None


MAX_KNOWN_HEADER_BYTES = 100
"""Bytes of a header whose decoded form is cached: headers of single items are all alike."""


@lru_cache(maxsize=256)
def _known_header(line: bytes) -> SegmentHeader:
    return codec.decode(line, SegmentHeader).record


def encode_segment(header: SegmentHeader, bodies: Sequence[bytes]) -> bytes:
    return b"".join([msgspec.json.encode(header), b"\n", *bodies])


def decode_segment(data: bytes) -> tuple[SegmentHeader, list[bytes]]:
    """The header and the items of a segment; a large item's bytes are empty.

    Raises Malformed: the bytes are no segment.
    """
    line, _, rest = data.partition(b"\n")
    header = _known_header(line) if len(line) <= MAX_KNOWN_HEADER_BYTES else codec.decode(line, SegmentHeader).record
    if header.large and max(header.large) >= len(header.sizes):
        raise Malformed("a segment whose header lists large items that it does not have")
    bodies, start = [], 0
    for size in header.sizes:
        bodies.append(rest[start : start + size])
        start += size
    if start != len(rest):
        raise Malformed(f"a segment with {len(rest)} bytes of items, whose header says {start}")
    return header, bodies


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
