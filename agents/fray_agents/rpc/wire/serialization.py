"""Values as bytes: pickle 5, large buffers beside the stream, cloudpickle for what pickle cannot.

pickle names a class of `__main__` instead of describing it, but the `__main__` of the other process is another
program: whatever mentions it goes through cloudpickle, which is imported only then.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fray_agents.rpc.errors import RemoteError, RemoteTraceback
from fray_agents.rpc.wire.buffers import Buffer, buffer_pool

MIN_OUT_OF_BAND_BYTES = 8 * 1024
"""Bytes from which a buffer travels beside the pickle instead of being copied into it."""


class Payload(NamedTuple):
    """A pickled value and its large buffers."""

    data: bytes
    buffers: Sequence[Buffer] = ()

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.data) + sum(map(len, self.buffers))

    def snapshot(self) -> Payload:
        """The same, independent of the memory that the value's owner may change."""
        return Payload(self.data, [buffer_pool().copy(buffer) for buffer in self.buffers]) if self.buffers else self


def pack(value: object, foreign: bool = True) -> Payload:
    """Pickle `value`; the buffers still are the value's own memory.

    Args:
        foreign: it will be read by another program, whose `__main__` is another.
    """
    buffers: list[Buffer] = []

    def beside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < MIN_OUT_OF_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    try:
        data = pickle.dumps(value, 5, buffer_callback=beside)
        if not (foreign and (b"__main__" in data or modules_pickled_by_value())):
            return Payload(data, buffers)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # cloudpickle can do more, and says what it cannot
    import cloudpickle

    buffers.clear()
    return Payload(cloudpickle.dumps(value, 5, buffer_callback=beside), buffers)


class ReferencePayload(Payload):
    """What cannot be pickled and does not leave this process: the value itself, whoever changes it."""

    value: Any

    @classmethod
    def to(cls, value: object) -> ReferencePayload:
        """In the place of the value's pickle."""
        reference = cls(b"")
        reference.value = value
        return reference


def pack_or_refer(value: object) -> Payload:
    """`pack` for a reader in this process, who is given what cannot be pickled as it is."""
    try:
        return pack(value)
    except Exception:  # any code of the user may run in pickling it
        return ReferencePayload.to(value)


def modules_pickled_by_value() -> set[str]:
    """The modules that the user wants pickled by value (`cloudpickle.register_pickle_by_value`)."""
    cloudpickle = sys.modules.get("cloudpickle")
    return cloudpickle.list_registry_pickle_by_value() if cloudpickle is not None else set()


def unpack(packed: Payload) -> Any:
    """The value; the arrays in it use the memory of the buffers."""
    if isinstance(packed, ReferencePayload):
        return packed.value
    return pickle.loads(packed.data, buffers=packed.buffers)


class Codec(Protocol):
    """How the values of one call travel."""

    verb: str
    """What is done to a value, as a participle."""

    def arguments(self, packed: Payload) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Positional and keyword arguments of the call."""
        ...

    def value(self, value: object) -> Payload:
        """A result, independent of memory that may change. Raises any Exception: it cannot travel so."""
        ...

    def error(self, error: BaseException) -> Payload:
        """What was raised instead."""
        ...


class _PickleCodec:
    verb = "pickled"

    def arguments(self, packed: Payload) -> tuple[Sequence[Any], Mapping[str, Any]]:
        args, kwargs = unpack(packed)
        return args, kwargs

    def value(self, value: object) -> Payload:
        return pack(value).snapshot()

    def error(self, error: BaseException) -> Payload:
        return pack_error(error)


class _ReferenceCodec(_PickleCodec):
    def value(self, value: object) -> Payload:
        return pack_or_refer(value).snapshot()


PICKLE: Codec = _PickleCodec()
"""Between Python programs. JSON, for all others, is in `json_values`."""

BY_REFERENCE: Codec = _ReferenceCodec()
"""Between threads of one process: pickled too, so that they do not share memory unawares, but for what cannot be."""


def pack_error(error: BaseException, foreign: bool = True) -> Payload:
    """An exception with its traceback as text; one that cannot be pickled as its text alone."""
    text = traceback_of(error)
    try:
        inner = pack(error, foreign)
        blob: bytes | None = inner.data if not inner.buffers else pickle.dumps(error, 5)
    except Exception:  # any code of the user may run in pickling it
        blob = None
    if not isinstance(error, Exception):  # a SystemExit of the method must not end its caller
        blob = None
    return Payload(pickle.dumps((blob, f"{type(error).__qualname__}: {message_of(error)}", text), 5))


def unpack_error(packed: Payload) -> BaseException:
    """The exception of `pack_error`; the remote traceback is its cause."""
    blob, short, text = pickle.loads(packed.data)
    error: BaseException
    try:
        error = pickle.loads(blob) if blob is not None else RemoteError(short)
    except Exception:  # its class is not here, or its constructor wants other arguments
        error = RemoteError(short)
    if not isinstance(error, BaseException):
        error = RemoteError(short)
    error.__cause__ = RemoteTraceback(text)
    return error


def traceback_of(error: BaseException) -> str:
    """The traceback as text."""
    return "".join(traceback.format_exception(type(error), error, getattr(error, "__traceback__", None)))


def message_of(error: BaseException) -> str:
    """What the exception says, whatever its class does when it is asked."""
    try:
        return str(error)
    except Exception as problem:
        return f"(its text cannot be had: {type(problem).__name__})"
