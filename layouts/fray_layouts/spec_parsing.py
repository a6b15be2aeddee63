"""Parses job specs as people write them.

Every spec goes through `parse_spec`: a file in the inbox, `fray submit` and the Python API. Every error is an
`InvalidInput` that names the field as it was written, the value, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import parse_json
from fray_layouts.spec import JobSpec
from fray_layouts.spec_checks import checked
from fray_layouts.struct_reading import REDACTED, read_struct, refuse_unknown, with_sizes
from fray_layouts.units import parse_bytes

ALIASES = {"resources": {"ram": "memory"}}
"""Accepted other names of fields: by part of the spec, the other name and Fray's own name."""


def parse_spec(data: bytes | str | Mapping[str, Any]) -> JobSpec:
    """Read and check a job spec.

    Args:
        data: JSON text, or the mapping it would parse to (YAML front ends give one).

    Raises:
        InvalidInput: the first fault found: not JSON, an unknown or missing field, a wrong type, a value out of bounds.
    """
    raw = _parsed(data)
    _refuse_other_spellings(raw)
    refuse_unknown(raw, JobSpec, ALIASES)
    return checked(read_struct(_normalized(raw), JobSpec, "spec"))


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
    """Refuse the ways in which other systems spell an entrypoint, and say how to write it here."""
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


def _normalized(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with `ram` renamed to `memory`, and sizes converted to bytes."""
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
    if isinstance(out.get("log_limit"), str):
        out["log_limit"] = parse_bytes("log_limit", out["log_limit"])
    if isinstance(out.get("resources"), dict):
        out["resources"] = with_sizes("resources", out["resources"])
    return out
