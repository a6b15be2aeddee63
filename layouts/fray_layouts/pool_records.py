"""What the workers of a pool write: outcomes of tasks, many in one object, and the pool's own record."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fray_layouts.errors import Malformed
from fray_layouts.records import Record


class PoolRecord(Record, kw_only=True):
    """`pool.json`: what a later driver must know to go on with the pool.

    Attributes:
        used_at: when a driver last attached, stayed for a day, or changed `jobs`; storage's clock.
        jobs: ids of the worker jobs that were started and not yet found ended.
    """

    created_at: float = 0.0
    used_at: float = 0.0
    jobs: list[str] = msgspec.field(default_factory=list)


class TaskOutcome(msgspec.Struct, omit_defaults=True, array_like=True):
    """One step of a task, in an object of many; the object is MessagePack, an array of these.

    Attributes:
        task: the key that the driver gave it.
        kind: "value" (it returned), "item" (it yielded), "end" (it yielded all), "error" (it raised), "dead" (it was
            given up after its processes died).
        number: of an item, from 0.
        data: the pickled value or exception; of "dead" and of an exception that cannot be pickled, its text.
    """

    task: str
    kind: str
    number: int = 0
    data: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[TaskOutcome])


def encode_outcomes(outcomes: Iterable[TaskOutcome]) -> bytes:
    """The bytes of one object that holds these outcomes."""
    return _encoder.encode(list(outcomes))


def decode_outcomes(data: bytes) -> list[TaskOutcome]:
    """The outcomes in one object. Raises Malformed if it holds none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
