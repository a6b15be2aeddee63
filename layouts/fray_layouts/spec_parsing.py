"""Reader of job specs as people write them.

`parse_spec` is the only way in: from a file in the inbox, from `fray submit` and from the Python API alike. Every
complaint is an `InvalidInput` that names the field as it was written, the value, and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fray_layouts.bounds import (
    REMEDIES,
)
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import parse_json
from fray_layouts.spec import JobSpec, SpecPart
from fray_layouts.spec_checks import REDACTED, checked
from fray_layouts.units import parse_bytes

_MAX_COMPARED_CHARACTERS = 64
"""Characters of an unknown field's name that are compared with those that there are."""
SIZE_FIELDS = ("memory", "disk")
"""Resources that people may write as text with a unit."""
ALIASES = {"resources": {"ram": "memory"}}
"""Other names of fields that are accepted, by the part of the spec and our name."""


def parse_spec(data: bytes | str | Mapping[str, Any]) -> JobSpec:
    """Read and check a job spec.

    Args:
        data: JSON text, or the mapping it would parse to (YAML front ends give one).

    Raises:
        InvalidInput: not JSON, an unknown or missing field, a wrong type or a value out of bounds; the first found.
    """
    raw = _parsed(data)
    _refuse_other_spellings(raw)
    _refuse_unknown(raw, JobSpec, "")
    raw = _normalized(raw)
    try:
        spec = msgspec.convert(raw, JobSpec)
    except msgspec.ValidationError as error:
        raise _invalid_input(error, raw) from None
    return checked(spec)


def _parsed(data: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(data, Mapping):
        return dict(data)
    try:
        raw = parse_json(data)
    except Malformed as error:
        raise InvalidInput("spec", REDACTED, f"it must be one JSON object ({error})") from None
    if not isinstance(raw, dict):
        raise InvalidInput("spec", REDACTED, "it must be one JSON object with at least name and entrypoint")
    return raw


def _refuse_other_spellings(raw: Mapping[str, Any]) -> None:
    """Refuse what other systems call an entrypoint, and say how it is written here."""
    entrypoint = raw.get("entrypoint")
    places = {
        "command": raw.get("command"),
        "entrypoint": None if isinstance(entrypoint, Mapping) else entrypoint,
        "entrypoint.command": entrypoint.get("command") if isinstance(entrypoint, Mapping) else None,
    }
    for field, given in places.items():
        if isinstance(given, str):
            words = '["sh", "-c", "..."]' if len(given.split()) > 1 else '["..."]'
        elif isinstance(given, list) and field != "entrypoint.command":
            words = "[...]"
        else:
            continue
        raise InvalidInput(field, REDACTED, f'a program and its arguments are "entrypoint": {{"command": {words}}}')


def _refuse_unknown(raw: object, struct: type[SpecPart], path: str) -> None:
    if not isinstance(raw, Mapping):
        return
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    same = ALIASES.get(path, {})
    for key, value in raw.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in fields and key not in same:
            near = difflib.get_close_matches(str(key)[:_MAX_COMPARED_CHARACTERS], [*fields, *same], n=1)
            hint = f"did you mean {near[0]}" if near else f"the fields here are {', '.join(fields)}"
            shown = value if isinstance(value, (int, float)) and path != "environment" else REDACTED
            raise InvalidInput(dotted, shown, f"there is no such field; {hint}")
        if part := _nested_spec(fields[same.get(str(key), str(key))].type):
            _refuse_unknown(value, part, dotted)


def _nested_spec(annotation: Any) -> type[SpecPart] | None:
    for candidate in getattr(annotation, "__args__", (annotation,)):
        if isinstance(candidate, type) and issubclass(candidate, SpecPart):
            return candidate
    return None


def _normalized(raw: dict[str, Any]) -> dict[str, Any]:
    """The spec with `ram` as `memory`, and sizes as bytes."""
    out = dict(raw)
    for part, spellings in ALIASES.items():
        if isinstance(out.get(part), Mapping):
            section = dict(out[part])
            for old, new in spellings.items():
                if old in section:
                    if new in section:
                        raise InvalidInput(f"{part}.{old}", section[old], f"it is the same as {new}; give one of them")
                    section[new] = section.pop(old)
            out[part] = section
    environment = out.get("environment")
    if isinstance(environment, Mapping) and isinstance(folder := environment.get("workspace"), str):
        remedy = "a folder is packed where the job is submitted: by `fray submit`, `fray run` or the Python interface"
        raise InvalidInput("environment.workspace", folder, remedy)
    if isinstance(out.get("resources"), dict):
        out["resources"] |= _parsed_sizes(out["resources"])
    return out


def _parsed_sizes(resources: Mapping[str, Any]) -> dict[str, int]:
    return {
        field: parse_bytes(f"resources.{field}", size)
        for field in SIZE_FIELDS
        if isinstance(size := resources.get(field), str)
    }


_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_WRONG = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


def _invalid_input(error: msgspec.ValidationError, raw: dict[str, Any]) -> InvalidInput:
    text = str(error)
    if found := _MISSING.search(text):
        path = ".".join(part for part in (found["path"], found["field"]) if part)
        return InvalidInput(path, None, "the field is missing and has no default; add it")
    found = _WRONG.match(text)
    path = (found["path"] or "spec") if found else "spec"
    value: Any = raw
    for part in re.findall(r"[^.\[\]]+", path):
        value = value.get(part) if isinstance(value, Mapping) else value
    if path.startswith("environment"):
        value = REDACTED
    return InvalidInput(path, value, _remedy(found["what"] if found else text))


_PATTERN = "Expected `str` matching regex "
_LENGTH = re.compile(r"Expected `str` of length <= (\d+)")
_BOUND = re.compile(r"Expected `\w+` (<|<=|>|>=) (\S+)")
_SIDES = {"<": "below", "<=": "of at most", ">": "above", ">=": "of at least"}


def _remedy(what: str) -> str:
    """The remedy for an error of msgspec."""
    if what.startswith(_PATTERN):
        return next(words for pattern, words in REMEDIES.items() if what == f"{_PATTERN}{pattern!r}")
    if found := _LENGTH.fullmatch(what):
        return f"give at most {found[1]} characters"
    if found := _BOUND.fullmatch(what):
        return f"give a number {_SIDES[found[1]]} {float(found[2]):.15g}"
    return what[0].lower() + what[1:]
