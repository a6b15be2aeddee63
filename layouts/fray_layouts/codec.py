"""Converts records to bytes and back, and keeps fields that this version does not know.

A newer version of Fray may have written fields that these structs lack. A decoded record is therefore kept together
with the JSON object it came from, and encoding merges the known fields into that object, in nested structs too.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import parse_json
from fray_layouts.records import MAX_RECENT_OPS, CheckedStruct, Record

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Decoded(Generic[T]):
    """A record and the raw object it came from."""

    record: T
    raw: dict[str, Any]


def decode(data: bytes, kind: type[T]) -> Decoded[T]:
    """Read a record, or any other JSON object that a struct describes.

    Raises Malformed: the bytes are not a JSON object of this kind (unknown fields are fine), or its fields contradict
        one another.
    """
    raw = parse_json(data)
    try:
        record = msgspec.convert(raw, kind)
        if isinstance(record, CheckedStruct):
            record.check()
    except (msgspec.ValidationError, InvalidInput) as error:
        raise Malformed(str(error)) from None
    return Decoded(record, raw)


def encode(record: msgspec.Struct, raw: dict[str, Any] | None = None) -> bytes:
    """Return `record` as JSON, with the unknown fields of `raw` kept."""
    return msgspec.json.encode(_laid_over(record, raw) if raw else record, enc_hook=plain_text)


def plain_text(value: object) -> str:
    """The `enc_hook` of encoders: writes a subclass of `str`, such as `JobId`, as plain text."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"objects of type {type(value).__name__} have no form in JSON")


def successor(record: R, op: str, previous: R | None) -> R:
    """Return `record` as the body of the write `op`, after the body `previous` (None: it creates the object)."""
    recent = [] if previous is None else [previous.op, *previous.recent_ops][:MAX_RECENT_OPS]
    created = op if previous is None else previous.created_op
    return msgspec.structs.replace(record, op=op, recent_ops=recent, created_op=created)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a struct, cached: msgspec evaluates their annotations again at each call, which is slow."""
    return msgspec.structs.fields(kind)


def _laid_over(value: Any, raw: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        known = _fields(type(value))
        names = {field.encode_name for field in known}
        old = raw if isinstance(raw, dict) else {}
        out = {key: kept for key, kept in old.items() if key not in names}
        for field in known:
            content = getattr(value, field.name)
            if field.required or content != _default(field):
                out[field.encode_name] = _laid_over(content, old.get(field.encode_name))
            elif isinstance(content, msgspec.Struct) and (nested := _laid_over(content, old.get(field.encode_name))):
                out[field.encode_name] = nested
        return out
    if isinstance(value, dict):
        old = raw if isinstance(raw, dict) else {}
        return {key: _laid_over(content, old.get(key)) for key, content in value.items()}
    if isinstance(value, list):
        items = raw if isinstance(raw, list) else []
        return [_laid_over(content, _raw_form(content, items)) for content in value]
    return value


def _raw_form(item: Any, items: list[Any]) -> Any:
    """Find the raw form of a list's item. Items have no names, so it is the first raw item that decodes to the same."""
    if not isinstance(item, msgspec.Struct):
        return None
    return next((raw for raw in items if msgspec.convert(raw, type(item)) == item), None)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory()
