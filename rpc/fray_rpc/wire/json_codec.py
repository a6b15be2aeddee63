"""Calls, results and errors as JSON, for callers in any language; nothing in them is unpickled.

A result is encoded only if JSON can express all of it, because a caller in another language would not notice missing
parts. The error for any other result names the type that JSON lacks and its place in the result.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.errors import Malformed, Temporary
from fray_layouts.parsing import MAX_DEPTH, parse_json
from fray_rpc.wire.serialization import Payload, message_of, traceback_of

MAX_JSON_BODY = 16 * 2**20
"""Most bytes of a call, and of a reply. This is part of the contract, layouts/actors.md."""

MAX_TRACEBACK = 16_000
"""Most characters of an error's traceback; the last ones are kept, some 200 lines, as the cause is there."""

_MARGIN = 64
"""Most bytes of a reply around its result."""


class JsonCall(msgspec.Struct, forbid_unknown_fields=True):
    """One call. `client` and `number` are its id, by which the client may ask again; without them it may not."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    client: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]*$", max_length=64)] = ""
    number: Annotated[int, Meta(ge=0, le=MAX_SAFE_INTEGER)] = 0


def parse_call(body: bytes) -> JsonCall:
    """The call in the body of a request. Raises Malformed: it is not a call."""
    raw = parse_json(body)
    try:
        call = msgspec.convert(raw, JsonCall)
    except msgspec.ValidationError as error:
        raise Malformed(f"the call: {error}") from None
    if bool(call.client) != bool(call.number):
        raise Malformed("the call: give client and number, from 1, or neither")
    return call


class _JsonCodec:
    verb = "encoded as JSON"

    def arguments(self, payload: Payload) -> tuple[Sequence[Any], Mapping[str, Any]]:
        call = parse_call(payload.data)
        return call.args, call.kwargs

    def value(self, value: object) -> Payload:
        _check(value, "the result", 0)
        data = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if len(data) > MAX_JSON_BODY - _MARGIN:
            raise ValueError(f"it has {len(data):,} bytes as JSON, more than the limit of {MAX_JSON_BODY - _MARGIN:,}")
        return Payload(data)

    def error(self, error: BaseException) -> Payload:
        retry = isinstance(error, Temporary)
        return error_as_json(type(error).__qualname__, message_of(error), retry, traceback_of(error)[-MAX_TRACEBACK:])


JSON = _JsonCodec()


def error_as_json(kind: str, message: str, retry: bool = False, trace: str = "") -> Payload:
    """An error in the form for callers. retry: the same call may succeed later, perhaps at another address."""
    fields = {"type": kind, "message": message, "retry": retry, **({"traceback": trace} if trace else {})}
    return Payload(json.dumps(fields).encode())


def _check(value: object, where: str, depth: int) -> None:
    """Raise TypeError or ValueError unless JSON can express all of `value`; tuples become arrays."""
    match value:
        case None | bool() | int():
            return
        case str():
            _check_text(value, where)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{where} is {value}, which JSON cannot express")
        case list() | tuple() | dict():
            if depth == MAX_DEPTH:
                raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
            _check_inside(value, where, depth + 1)
        case _:
            kind = type(value)
            raise TypeError(f"{where} is a {kind.__module__}.{kind.__qualname__}; return values that JSON can express")


def _check_inside(value: list[Any] | tuple[Any, ...] | dict[Any, Any], where: str, depth: int) -> None:
    if not isinstance(value, dict):
        for number, item in enumerate(value):
            _check(item, f"{where}[{number}]", depth)
        return
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{where} has the key {key!r}, a {type(key).__qualname__}; keys in JSON are text")
        _check_text(key, where)
        _check(item, f"{where}[{key!r}]", depth)


def _check_text(value: str, where: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds text that UTF-8 cannot encode") from None
