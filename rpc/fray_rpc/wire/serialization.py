"""Values as bytes: pickle 5 with large buffers outside the stream, and cloudpickle for values that pickle cannot do.

pickle refers to a class of `__main__` by name, but `__main__` of the other process is another program. So values that
mention `__main__` go through cloudpickle, which is imported only then.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fray_layouts.errors import InvalidInput
from fray_rpc.errors import RemoteError, RemoteTraceback
from fray_rpc.wire.buffers import Buffer, buffer_pool
from fray_runtime.pickling import modules_pickled_by_value, pickled_by_value

MIN_OUT_OF_BAND_BYTES = 8 * 1024
"""Bytes from which a buffer is sent outside the pickle; below that, copying it into the pickle is cheaper."""


class Payload(msgspec.Struct, frozen=True, gc=False):
    """A pickled value and its large buffers."""

    data: bytes
    buffers: Sequence[Buffer] = ()

    @property
    def size(self) -> int:
        """Bytes of the pickle and the buffers."""
        return len(self.data) + sum(map(len, self.buffers)) if self.buffers else len(self.data)

    def snapshot(self) -> Payload:
        """A copy that does not share memory with the value, which its owner may change."""
        return Payload(self.data, [buffer_pool().copy(buffer) for buffer in self.buffers]) if self.buffers else self


def pack(value: object, foreign: bool = True) -> Payload:
    """The pickle of `value`; its buffers still share the memory of the value.

    Args:
        foreign: another program reads it, with a different `__main__`.

    Raises:
        Exception: neither pickle nor cloudpickle can do it.
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
        pass  # cloudpickle can do more, and explains what it cannot do
    buffers.clear()
    return Payload(pickled_by_value(value, beside), buffers)


def unpicklable_part(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, object]:
    """The name and value of the first argument that cannot be pickled by itself; all of them if each can."""
    parts = {f"args[{number}]": value for number, value in enumerate(args)}
    parts |= {f"kwargs[{name!r}]": value for name, value in kwargs.items()}
    return next(((part, value) for part, value in parts.items() if not _packs(value)), ("args", args))


def unpicklable_arguments(
    method: str, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> InvalidInput:
    """The error for a call whose arguments cannot be pickled because of `error`; it names the argument."""
    part, value = unpicklable_part(args, kwargs)
    remedy = f"it cannot be pickled ({error}); pass what it is made from, and make it inside the method"
    return InvalidInput(f"{part} of {method}", value, remedy)


def _packs(value: object) -> bool:
    try:
        pack(value)
    except Exception:  # pickling may run any code of the user
        return False
    return True


class ReferencePayload(Payload, frozen=True, gc=True, kw_only=True):
    """A value that cannot be pickled and stays in this process: the value itself, which others may change."""

    value: Any


def pack_or_refer(value: object) -> Payload:
    """`pack` for a reader in this process; a value that cannot be pickled is passed as it is."""
    try:
        return pack(value)
    except Exception:  # pickling may run any code of the user
        return ReferencePayload(b"", value=value)


def unpack(payload: Payload) -> Any:
    """The value of a payload; arrays in it use the memory of the payload's buffers."""
    if isinstance(payload, ReferencePayload):
        return payload.value
    return pickle.loads(payload.data, buffers=payload.buffers)


class Codec(Protocol):
    """The encoding of arguments and results of one call."""

    verb: str
    """A participle for error messages that says what is done to a value."""

    def arguments(self, payload: Payload) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The positional and keyword arguments of the call."""

    def value(self, value: object) -> Payload:
        """The payload of a result, which shares no memory with it. Raises any Exception: it cannot be encoded."""

    def error(self, error: BaseException) -> Payload:
        """The payload of an exception. This never raises; details that cannot be encoded are lost."""


class _PickleCodec:
    verb = "pickled"

    def arguments(self, payload: Payload) -> tuple[Sequence[Any], Mapping[str, Any]]:
        args, kwargs = unpack(payload)
        return args, kwargs

    def value(self, value: object) -> Payload:
        return pack(value).snapshot()

    def error(self, error: BaseException) -> Payload:
        return pack_error(error)


class _ReferenceCodec(_PickleCodec):
    def value(self, value: object) -> Payload:
        return pack_or_refer(value).snapshot()


PICKLE: Codec = _PickleCodec()
"""For calls between Python programs. JSON, for all others, is in `json_codec`."""

BY_REFERENCE: Codec = _ReferenceCodec()
"""For calls between threads of one process: values are pickled, so that none is shared by accident, if they can be."""


def pack_error(error: BaseException) -> Payload:
    """An exception with its traceback as text; if it cannot be pickled, only the text."""
    text = traceback_of(error)
    try:
        inner = pack(error)
        blob: bytes | None = inner.data if not inner.buffers else pickle.dumps(error, 5)
    except BaseException:  # pickling may run any code of the user
        blob = None
    if not isinstance(error, Exception):  # a SystemExit of the method must not end its caller
        blob = None
    return Payload(pickle.dumps((blob, f"{type(error).__qualname__}: {message_of(error)}", text), 5))


def unpack_error(payload: Payload) -> BaseException:
    """The exception that was given to `pack_error`, or a `RemoteError`, with the remote traceback as its cause."""
    blob, short, text = pickle.loads(payload.data)
    error: BaseException
    try:
        error = pickle.loads(blob) if blob is not None else RemoteError(short)
    except BaseException:  # its class cannot be imported here, or its constructor takes other arguments, or raises
        error = RemoteError(short)
    if not isinstance(error, BaseException):
        error = RemoteError(short)
    error.__cause__ = RemoteTraceback(text)
    return error


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception, as text."""
    try:
        return "".join(traceback.format_exception(type(error), error, getattr(error, "__traceback__", None)))
    except BaseException as problem:  # formatting runs the exception's own code
        return f"(the traceback of {type(error).__qualname__} cannot be produced: {type(problem).__name__})"


def message_of(error: BaseException) -> str:
    """The message of an exception, even if its class fails to produce it."""
    try:
        return str(error)
    except BaseException as problem:
        return f"(its text cannot be produced: {type(problem).__name__})"
