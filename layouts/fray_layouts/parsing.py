"""Parses JSON text into plain values of bounded depth, and reads what a person wrote into structs.

Text that is not such JSON raises `Malformed`. Every other reader of JSON under a root builds on this one. The depth is
bounded here because the depth that Python can handle depends on the caller's stack: a value that one place could read,
another could not compare or write.

An error about what a person wrote names the field as written, and says what to write instead. The text of a field with
an unknown name is never shown: it may be a secret that was put in the wrong place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import msgspec

from fray_layouts.bounds import REMEDIES
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.units import parse_bytes, parse_seconds

MAX_DEPTH = 100
"""Deepest nesting of arrays and objects in any JSON; far more than records need, far less than Python's stack
allows."""
MAX_RESULT_DEPTH = MAX_DEPTH - 10
"""The same bound for a job's return value, which is nested inside its record."""


def parse_json(data: bytes | str, deepest: int = MAX_DEPTH) -> Any:
    """Decode JSON text into plain values.

    Raises:
        Malformed: it is not UTF-8 or not JSON, has a number that no float can hold, or is nested deeper than `deepest`.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Malformed(str(error)) from None
    except RecursionError:
        raise _too_deep(deepest) from None
    if _is_deeper(raw, value, deepest):
        raise _too_deep(deepest)
    return value


def _too_deep(deepest: int) -> Malformed:
    return Malformed(f"it is nested more than {deepest} deep")


_DEPTH_CHANGES = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - {*_DEPTH_CHANGES, ord('"'), ord("\\")})


def _is_deeper(raw: bytes, value: Any, deepest: int) -> bool:
    """Whether the JSON text is nested deeper: counts its brackets, which is quicker than a walk through the value."""
    brackets = raw.translate(None, _NO_BRACKETS).replace(b'""', b"")
    if len(brackets) <= 2 * deepest:
        return False
    if b'"' in brackets or b"\\" in brackets:  # some of the brackets may be part of strings
        return _is_walked_deeper(value, deepest)
    return max(accumulate(map(_DEPTH_CHANGES.__getitem__, brackets))) > deepest


def _is_walked_deeper(value: Any, deepest: int) -> bool:
    level = [value]
    for _ in range(deepest):
        if not level:
            return False
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list)))
        level = [part for parts in inner for part in parts]
    return any(isinstance(part, (dict, list)) for part in level)


S = TypeVar("S", bound=msgspec.Struct)

REDACTED = "..."
"""Shown in place of possible secrets: text in a field of an unknown name, and anything in the environment."""
_MAX_COMPARED_CHARACTERS = 64
"""Characters of an unknown field's name that are compared with the known names; bounds the work for a huge name."""


def read_struct(raw: Mapping[str, Any], struct: type[S], top: str) -> S:
    """Convert a mapping without unknown fields to a struct, and what people wrote with a unit to bytes and seconds.

    Raises InvalidInput: a field is missing or has a bad value.

    top: name of the whole, for errors that concern no single field.
    """
    plain = _without_units(raw, struct)
    try:
        return msgspec.convert(plain, struct)
    except msgspec.ValidationError as error:
        raise _invalid_input(error, plain, top) from None


def refuse_unknown(
    raw: object,
    struct: type[msgspec.Struct],
    aliases: Mapping[str, Mapping[str, str]],
    others: Mapping[str, Mapping[str, str]],
    path: str = "",
) -> None:
    """Raise InvalidInput if the mapping, or one nested in it, has a field that the struct does not know.

    aliases: accepted other names of fields: by path of the mapping, the other name and Fray's own name.
    others: names of fields in other tools' files: by path of the mapping, the name and the remedy.
    """
    if isinstance(raw, list):
        for number, part in enumerate(raw):
            refuse_unknown(part, struct, aliases, others, f"{path}[{number}]")
    if not isinstance(raw, Mapping):
        return
    fields = types_of(struct)
    same = aliases.get(path, {})
    for key, value in raw.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in fields and key not in same:
            hint = others.get(path, {}).get(str(key)) or _meant(str(key), struct, same)
            shown = value if isinstance(value, (int, float)) and path != "environment" else REDACTED
            raise InvalidInput(dotted, shown, f"there is no such field; {hint}")
        if part := fields[same.get(str(key), str(key))].struct:
            refuse_unknown(value, part, aliases, others, dotted)


def _meant(key: str, struct: type[msgspec.Struct], same: Mapping[str, str]) -> str:
    """The field that somebody may have meant who wrote an unknown one."""
    fields = types_of(struct)
    if parts := [name for name, kind in fields.items() if kind.struct and key in types_of(kind.struct)]:
        return f"it stands below {' or '.join(parts)}: {parts[0]}: {{{key}: ...}}"
    near = difflib.get_close_matches(key[:_MAX_COMPARED_CHARACTERS], [*fields, *same], n=1)
    return f"did you mean {near[0]}" if near else f"the fields here are {', '.join(fields)}"


class FieldType(NamedTuple):
    """What a field of a struct holds. struct: the struct in it or in its list, if any. unit: "bytes", "seconds", ""."""

    struct: type[msgspec.Struct] | None
    unit: str


@cache
def types_of(struct: type[msgspec.Struct]) -> dict[str, FieldType]:
    """The fields of a struct by name, as far as concerns who reads what people write."""
    fields = msgspec.structs.fields(struct)
    return {field.name: FieldType(_nested_struct(field.type), _unit(field.type)) for field in fields}


def _nested_struct(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct in a field's type: the type itself, the items of its list, or one part of its union."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next(filter(None, map(_nested_struct, getattr(annotation, "__args__", ()))), None)


def _unit(annotation: Any) -> str:
    """The unit that a field's type is marked with, such as that of `bounds.Seconds | None`."""
    marks = [meta.extra["unit"] for meta in getattr(annotation, "__metadata__", ()) if meta.extra]
    return next(iter(marks), "") or next(filter(None, map(_unit, getattr(annotation, "__args__", ()))), "")


_UNITS: dict[str, Callable[[str, Any], float]] = {"bytes": parse_bytes, "seconds": parse_seconds}


def _without_units(raw: Any, struct: type[msgspec.Struct], path: str = "") -> Any:
    """The same values, with what has a unit converted to bytes and seconds. Raises InvalidInput: one cannot be."""
    if isinstance(raw, list):
        return [_without_units(part, struct, f"{path}[{number}]") for number, part in enumerate(raw)]
    if not isinstance(raw, Mapping):
        return raw
    plain = dict(raw)
    for name, (part, unit) in types_of(struct).items():
        dotted = f"{path}.{name}" if path else name
        if unit and plain.get(name) is not None:
            plain[name] = _UNITS[unit](dotted, plain[name])
        elif part and name in plain:
            plain[name] = _without_units(plain[name], part, dotted)
    return plain


_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_WRONG = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


def _invalid_input(error: msgspec.ValidationError, raw: Mapping[str, Any], top: str) -> InvalidInput:
    text = str(error)
    if found := _MISSING.search(text):
        path = ".".join(part for part in (found["path"], found["field"]) if part)
        return InvalidInput(path, None, "the field is missing and has no default; add it")
    found = _WRONG.match(text)
    path = (found["path"] or top) if found else top
    value: Any = raw
    for part in re.findall(r"[^.\[\]]+", path):
        value = value.get(part) if isinstance(value, Mapping) else value
    if path.startswith("environment"):
        value = REDACTED
    return InvalidInput(path, value, _remedy(found["what"] if found else text))


_PATTERN = "Expected `str` matching regex "
_LENGTH = re.compile(r"Expected `str` of length <= (\d+)")
_BOUND = re.compile(r"Expected `\w+` (<|<=|>|>=) (\S+)")
_KIND = re.compile(r"Expected `([\w| ]+)`, got `\w+`")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text, in quotes",
    "bool": "true or false",
    "array": "a list: [...]",
    "object": "fields with their values",
}
"""Types in msgspec's errors, in the words that people use."""
_SIDES = {"<": "below", "<=": "of at most", ">": "above", ">=": "of at least"}


def _remedy(what: str) -> str:
    """The remedy for an error of msgspec."""
    if what.startswith(_PATTERN):
        return next(words for pattern, words in REMEDIES.items() if what == f"{_PATTERN}{pattern!r}")
    if found := _LENGTH.fullmatch(what):
        return f"give at most {found[1]} characters"
    if found := _BOUND.fullmatch(what):
        return f"give a number {_SIDES[found[1]]} {float(found[2]):.15g}"
    if (found := _KIND.fullmatch(what)) and (
        wanted := [_KINDS[kind] for kind in found[1].split(" | ") if kind in _KINDS]
    ):
        return f"give {' or '.join(wanted)}"
    return what[0].lower() + what[1:]
