"""Parses job specs as people write them, and checks what the types and bounds of the fields cannot express.

Every spec goes through `parse_spec`: a file in the inbox, `fray submit` and the Python API. Every error is an
`InvalidInput` that names the field as it was written, the value, and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fray_layouts import other_fields
from fray_layouts.bounds import (
    MAX_JOB_ID,
    MAX_NAME,
    NAME_PATTERN,
    REMEDIES,
    USER_PATTERN,
)
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.key_encoding import ID_DIGEST_DIGITS
from fray_layouts.parsing import REDACTED, parse_json, read_struct, refuse_unknown
from fray_layouts.path_patterns import check_patterns
from fray_layouts.spec import EntrypointSpec, EnvironmentSpec, JobSpec, check_slices, is_gang, port_variable
from fray_layouts.topology import get_tpu_topology
from fray_layouts.units import counted

MAX_PORTS = 16
"""Largest number of ports of one job: a host has 10,000 ports for all of its jobs."""
MAX_NAME_AND_ID = MAX_JOB_ID - len("--") - ID_DIGEST_DIGITS
"""Most characters that a job's name and its given id may have together, so that the job's id fits `MAX_JOB_ID`."""
_SHELL_LINE = re.compile(r"[^/]*[\s|;&<>$`*]")
"""A program name with blanks or shell characters before any slash: the person probably wrote a line for a shell."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def checked(spec: JobSpec) -> JobSpec:
    """Return the same spec. Raises InvalidInput for the first fault that types and bounds do not find."""
    _check_storable("", msgspec.to_builtins(spec))
    if spec.id and len(spec.name) + len(spec.id) > MAX_NAME_AND_ID:
        raise InvalidInput("id", spec.id, f"give name and id of at most {MAX_NAME_AND_ID} characters together")
    _check_entrypoint(spec.entrypoint)
    _check_environment(spec.environment)
    _check_ports(spec.ports)
    check_patterns("outputs", spec.outputs)
    _check_gang(spec)
    device = spec.resources.device
    if device is not None and device.kind not in ("cpu", "gpu", "tpu"):
        raise InvalidInput("resources.device.kind", device.kind, "the kinds are cpu, gpu and tpu")
    if device is not None and device.count < 1 and (device.kind != "gpu" or device.count != round(device.count, 3)):
        raise InvalidInput("resources.device.count", device.count, "give a whole number, or thousandths of one GPU")
    return spec


def _check_storable(field: str, value: object) -> None:
    """Refuse text that JSON cannot hold exactly, because it would make a record that nobody can read."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_storable(field, key)
            _check_storable(f"{field}.{key}" if field else key, part)
    elif isinstance(value, list):
        for part in value:
            _check_storable(field, part)
    elif isinstance(value, str) and _SURROGATE.search(value):
        raise InvalidInput(field, REDACTED, "the text holds bytes that are not UTF-8")


def check_namespace(value: object) -> None:
    """Raise InvalidInput unless `value` can be a namespace."""
    check_name("namespace", value, MAX_JOB_ID)


def check_user(field: str, value: str) -> None:
    """Raise InvalidInput naming `field` unless `value` can be the user of a job."""
    _check_storable(field, value)
    if len(value) > MAX_NAME:
        raise InvalidInput(field, value, f"give a login name of at most {MAX_NAME} characters")
    if not re.search(USER_PATTERN, value):
        raise InvalidInput(field, value, REMEDIES[USER_PATTERN])


def check_name(field: str, value: object, longest: int = MAX_NAME) -> None:
    """Raise InvalidInput naming `field` unless `value` can be part of a key."""
    if not isinstance(value, str):
        raise InvalidInput(field, value, "give a text")
    if len(value) > longest:
        raise InvalidInput(field, value, f"give at most {longest} characters")
    if not re.match(NAME_PATTERN, value):
        raise InvalidInput(field, value, REMEDIES[NAME_PATTERN])


def check_whole_slices(spec: JobSpec) -> None:
    """Refuse a TPU type that does not exist, or replicas that do not fill whole slices.

    This is for specs that were written without `ResourceConfig`, which counts the hosts itself.

    Raises:
        InvalidInput: there is no such TPU type, or the replicas do not fill whole slices.
    """
    device, others = spec.resources.device, spec.resources.device_alternatives
    if device is None or device.kind != "tpu" or not device.variant:
        return
    for variant in (device.variant, *others):
        try:
            hosts = get_tpu_topology(variant).vm_count
        except InvalidInput as error:
            field = "device_alternatives" if variant in others else "device.variant"
            raise InvalidInput(f"resources.{field}", variant, error.remedy) from None
        if spec.slices * hosts != spec.replicas and not spec.replicas == hosts == 1:
            count = max(1, spec.slices)
            remedy = f"give slices: {count} and replicas: {count * hosts} for {counted(count, 'slice')} of {variant}"
            raise InvalidInput("replicas", spec.replicas, remedy)


def _check_gang(spec: JobSpec) -> None:
    if spec.replicas > 1 and spec.actor:
        raise InvalidInput("replicas", spec.replicas, "an actor is one process; create a group of actors instead")
    others = spec.resources.device_alternatives
    device = spec.resources.device
    if spec.outage == "run" and is_gang(spec):
        remedy = "a gang ends with the trust of each of its agents, or its next attempt could run beside a part of it"
        raise InvalidInput("outage", spec.outage, f"{remedy}; leave it out")
    if others and spec.actor:
        raise InvalidInput("resources.device_alternatives", others, "an actor is for one device; leave them out")
    if others and device is None:
        raise InvalidInput("resources.device_alternatives", others, "name a device too, or leave them out")
    if spec.slices and (device is None or device.kind != "tpu"):
        raise InvalidInput(
            "slices", spec.slices, "only a TPU comes in slices; name a TPU as the device, or leave it out"
        )
    check_slices("slices", spec.slices, spec.replicas)


def _check_entrypoint(entrypoint: EntrypointSpec) -> None:
    if bool(entrypoint.command) == (entrypoint.callable is not None):
        raise InvalidInput("entrypoint", msgspec.to_builtins(entrypoint), "give a command or a callable, one of them")
    if entrypoint.command and not entrypoint.command[0]:
        raise InvalidInput("entrypoint.command", entrypoint.command, "the program's name is empty")
    if entrypoint.command and _SHELL_LINE.match(entrypoint.command[0]):
        remedy = 'its first part is the program alone; a line for a shell is ["sh", "-c", "..."]'
        raise InvalidInput("entrypoint.command", entrypoint.command, remedy)
    if any("\0" in part for part in entrypoint.command):
        raise InvalidInput("entrypoint.command", entrypoint.command, "no part may hold a NUL character")
    if entrypoint.stdin and not entrypoint.command:
        raise InvalidInput("entrypoint.stdin", entrypoint.stdin, "only a command reads it; a callable has arguments")
    call = entrypoint.callable
    if call is not None and bool(call.pickle) == bool(call.blob):
        raise InvalidInput("entrypoint.callable", msgspec.to_builtins(call), "give pickle or blob, one of them")


def _check_ports(names: list[str]) -> None:
    if len(names) > MAX_PORTS:
        raise InvalidInput("ports", f"{len(names)} names", f"give at most {MAX_PORTS}")
    if len({port_variable(name) for name in names}) < len(names):
        raise InvalidInput("ports", names, "two of them have the same variable, FRAY_PORT_ and the name in capitals")


def _check_environment(environment: EnvironmentSpec) -> None:
    if environment.python:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet  # costs 10 ms, and most jobs ask for none

        try:
            SpecifierSet(environment.python)
        except InvalidSpecifier:
            remedy = "give versions as in a project's requires-python, such as >=3.11 or ==3.12.*"
            raise InvalidInput("environment.python", environment.python, remedy) from None
    folder = environment.workspace.folder if environment.workspace is not None else ""
    if folder and ("\0" in folder or any(name in ("", ".", "..") for name in folder.split("/"))):
        raise InvalidInput("environment.workspace.folder", folder, "give a path in the workspace, such as jobs/a")
    for requirement in environment.pip_packages:
        if requirement.lstrip().startswith("-") or not requirement.strip() or "\n" in requirement:
            remedy = "give requirements such as numpy>=2; options are settings of uv on the agents' hosts"
            raise InvalidInput("environment.pip_packages", requirement, remedy)
    both = set(environment.env_vars) & set(environment.secret_env_vars)
    for name in sorted(both):
        raise InvalidInput(f"environment.env_vars.{name}", REDACTED, "it is in secret_env_vars too; give it once")
    for part in ("env_vars", "secret_env_vars"):
        for name, value in getattr(environment, part).items():
            if not name or "=" in name or "\0" in name:
                shown = f"{name.partition('=')[0]}=..." if "=" in name else name
                raise InvalidInput(f"environment.{part}", shown, "a name is not empty and has no '=' and no NUL")
            if "\0" in value:
                raise InvalidInput(f"environment.{part}.{name}", REDACTED, "a value cannot hold a NUL character")


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
    refuse_unknown(raw, JobSpec, ALIASES, other_fields.OF_JOBS)
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
    """Return the spec with `ram` renamed to `memory`."""
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
    return out
