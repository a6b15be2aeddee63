"""What a person writes to describe a job, and the check that it makes sense.

`parse_spec` is the only way in: from a file in the inbox, from `fray submit` and from the Python API alike. Every
complaint is an `InvalidInput` that names the field as it was written, the value, and what to write instead.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import parse_json
from fray_layouts.units import parse_bytes

MAX_NAME = 128
MAX_JOB_ID = 144
"""A name, a hyphen and a suffix. With it and the longest shape an index entry's name just fits every store."""
MAX_VARIANT = 32
NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE | re.ASCII)
PRIORITIES = range(-500, 500)
INLINE_LIMIT = 64 * 1024


class Spec(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of the parts of a spec."""


class Callable(Spec, kw_only=True):
    """A pickled Python call: `pickle` is base64 of cloudpickle of (function, args, kwargs), or `blob` its key."""

    pickle: str = ""
    blob: str = ""


class Entrypoint(Spec, kw_only=True):
    """What to run: a command (program and arguments, no shell), or a callable. Exactly one."""

    command: list[str] = []
    callable: Callable | None = None


class Device(Spec, kw_only=True):
    """An accelerator. kind: "cpu", "gpu" or "tpu"; variant: "h100", "v5litepod-16" ...; count: per replica."""

    kind: str = "cpu"
    variant: str = ""
    count: int = 1


class ResourceSpec(Spec, kw_only=True):
    """What one replica needs while it runs.

    Attributes:
        cpu: cores; fractions to a thousandth.
        memory: bytes, or text such as "2GB", "512MiB"; `ram` is the same thing.
        disk: bytes of scratch space, or text.
        preemptible: false keeps the job off hosts that may be taken away.
    """

    cpu: float = 1.0
    memory: int | str = 0
    disk: int | str = 0
    device: Device | None = None
    preemptible: bool = True


class EnvironmentSpec(Spec, kw_only=True):
    """The process's environment.

    Attributes:
        env_vars: variables; they win over the agent's own.
        secret_env_vars: variables whose values no command ever shows.
    """

    env_vars: dict[str, str] = {}
    secret_env_vars: dict[str, str] = {}


class HealthCheck(Spec, kw_only=True):
    """An HTTP route on the task's host that must answer 2xx.

    Attributes:
        path, port: where; the agent asks on the loopback address.
        interval: seconds between questions.
        timeout: seconds for one answer.
        grace: seconds after the start in which failing does not count.
        failures: failures in a row that end the attempt as a failure.
    """

    path: str = "/"
    port: int
    interval: float = 10.0
    timeout: float = 5.0
    grace: float = 30.0
    failures: int = 3


class JobSpec(Spec, kw_only=True):
    """A job, as a person writes it.

    Attributes:
        name: shown to people; the job's id is this name and a unique suffix.
        id: makes resubmission idempotent: the same id finds the first job. Part of the job's id.
        replicas: processes that run as one gang.
        max_retries_failure: further attempts after the job's own failures.
        max_retries_preemption: further attempts after its host went away.
        timeout: seconds one attempt may run.
        pending_timeout: seconds the job may wait to be started before it is stopped.
        grace: seconds between SIGTERM and SIGKILL when it is stopped or preempted.
        priority: from -500 to 499; higher goes first.
        namespace: scope of actor names; a child inherits its parent's, a top-level job gets one from its name.
        parent: id of the job that ends this one when it ends.
        detached: the job outlives its parent.
        pool: group of agents that may run it.
        actor: it serves calls: only agents that accept connections run it; it is killed as soon as its agent's leases
            may no longer be relied on, and restarted on its host when it fails and has retries left.
    """

    name: str
    entrypoint: Entrypoint
    id: str = ""
    resources: ResourceSpec = msgspec.field(default_factory=ResourceSpec)
    environment: EnvironmentSpec = msgspec.field(default_factory=EnvironmentSpec)
    replicas: int = 1
    max_retries_failure: int = 0
    max_retries_preemption: int = 100
    timeout: float | None = None
    pending_timeout: float | None = None
    grace: float = 10.0
    priority: int = 0
    namespace: str = ""
    parent: str = ""
    detached: bool = False
    pool: str = "default"
    actor: bool = False
    health_check: HealthCheck | None = None


_LATER = {
    "environment.packages": "packages come in a later release; install them on the host and leave the field out",
    "environment.pip_packages": "packages come in a later release; install them on the host and leave the field out",
    "environment.extras": "extras come in a later release; install them on the host and leave the field out",
    "environment.workspace": "workspaces come in a later release; put the code on the host and leave the field out",
    "environment.docker_image": "images come in a later release; leave the field out",
}
_SAME_THING = {"resources": {"ram": "memory"}}


def parse_spec(data: bytes | str | Mapping[str, Any]) -> JobSpec:
    """Read and check a job spec.

    Args:
        data: JSON text, or the mapping it would parse to (YAML front ends give one).

    Raises:
        InvalidInput: not JSON, an unknown or missing field, a wrong type or a value out of bounds; the first found.
    """
    raw = _object(data)
    _complain_about_unknown(raw, JobSpec, "")
    raw = _one_spelling(raw)
    try:
        spec = msgspec.convert(raw, JobSpec)
    except msgspec.ValidationError as error:
        raise _translated(error, raw) from None
    return checked(spec)


def checked(spec: JobSpec) -> JobSpec:
    """The same spec with sizes in bytes; raises InvalidInput for the first value that is out of bounds."""
    resources = msgspec.structs.replace(
        spec.resources,
        memory=parse_bytes("resources.memory", spec.resources.memory),
        disk=parse_bytes("resources.disk", spec.resources.disk),
    )
    _check_storable("", msgspec.to_builtins(msgspec.structs.replace(spec, resources=resources)))
    check_name("name", spec.name)
    for field, longest in {"namespace": MAX_NAME, "pool": MAX_NAME, "parent": MAX_JOB_ID, "id": MAX_NAME}.items():
        if value := getattr(spec, field):
            check_name(field, value, longest)
    if len(spec.name) + 1 + len(spec.id) > MAX_JOB_ID:
        raise InvalidInput("id", spec.id, f"give name and id of at most {MAX_JOB_ID - 1} characters together")
    _check_entrypoint(spec.entrypoint)
    _check_resources(resources)
    _check_environment(spec.environment)
    _check_numbers(spec)
    return msgspec.structs.replace(spec, resources=resources)


def _object(data: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(data, Mapping):
        return dict(data)
    try:
        raw = parse_json(data)
    except Malformed as error:
        raise InvalidInput("spec", data[:200], f"it must be one JSON object ({error})") from None
    if not isinstance(raw, dict):
        raise InvalidInput("spec", raw, "it must be one JSON object with at least name and entrypoint")
    return raw


def _complain_about_unknown(raw: object, struct: type[Spec], path: str) -> None:
    if not isinstance(raw, Mapping):
        return
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    same = _SAME_THING.get(path, {})
    for key, value in raw.items():
        dotted = f"{path}.{key}" if path else str(key)
        if dotted in _LATER and value:
            raise InvalidInput(dotted, value, _LATER[dotted])
        if dotted in _LATER:
            continue
        if key not in fields and key not in same:
            near = difflib.get_close_matches(str(key), [*fields, *same], n=1)
            hint = f"did you mean {near[0]}" if near else f"the fields here are {', '.join(fields)}"
            raise InvalidInput(dotted, value, f"there is no such field; {hint}")
        if part := _part(fields[same.get(str(key), str(key))].type):
            _complain_about_unknown(value, part, dotted)


def _part(annotation: Any) -> type[Spec] | None:
    for candidate in getattr(annotation, "__args__", (annotation,)):
        if isinstance(candidate, type) and issubclass(candidate, Spec):
            return candidate
    return None


def _one_spelling(raw: dict[str, Any]) -> dict[str, Any]:
    """The spec with `ram` as `memory` and without empty fields of later releases."""
    out = dict(raw)
    for part, spellings in _SAME_THING.items():
        if isinstance(out.get(part), Mapping):
            section = dict(out[part])
            for old, new in spellings.items():
                if old in section:
                    if new in section:
                        raise InvalidInput(f"{part}.{old}", section[old], f"it is the same as {new}; give one of them")
                    section[new] = section.pop(old)
            out[part] = section
    if isinstance(out.get("environment"), Mapping):
        out["environment"] = {k: v for k, v in out["environment"].items() if f"environment.{k}" not in _LATER}
    return out


_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_WRONG = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


def _translated(error: msgspec.ValidationError, raw: dict[str, Any]) -> InvalidInput:
    text = str(error)
    if found := _MISSING.search(text):
        path = ".".join(part for part in (found["path"], found["field"]) if part)
        return InvalidInput(path, None, "the field is missing and has no default; add it")
    found = _WRONG.match(text)
    path = (found["path"] or "spec") if found else "spec"
    value: Any = raw
    for part in re.findall(r"[^.\[\]]+", path):
        value = value.get(part) if isinstance(value, Mapping) else value
    what = found["what"] if found else text
    return InvalidInput(path, value, what[0].lower() + what[1:])


_SURROGATE = re.compile(r"[\ud800-\udfff]")


def _check_storable(field: str, value: object) -> None:
    """Refuse what JSON cannot hold exactly: it would make a record that nobody can read."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_storable(field, key)
            _check_storable(f"{field}.{key}" if field else key, part)
    elif isinstance(value, list):
        for part in value:
            _check_storable(field, part)
    elif isinstance(value, str) and _SURROGATE.search(value):
        raise InvalidInput(field, "...", "the text holds bytes that are not UTF-8")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(field, value, "give a finite number, or leave it out for no limit")
    elif isinstance(value, int) and abs(value) > 2**53:
        raise InvalidInput(field, value, "give a smaller number")


def check_name(field: str, value: object, longest: int = MAX_NAME) -> None:
    """Raise InvalidInput naming `field` unless `value` can be part of a key."""
    if not isinstance(value, str):
        raise InvalidInput(field, value, "give a text")
    if len(value) > longest:
        raise InvalidInput(field, value, f"give at most {longest} characters")
    if not NAME.fullmatch(value):
        raise InvalidInput(field, value, "use letters, digits, '-', '_' and '.', with a letter or digit at both ends")
    if "~" in value or ".." in value:
        raise InvalidInput(field, value, "'..' and '~' are reserved")


def _check_entrypoint(entrypoint: Entrypoint) -> None:
    if bool(entrypoint.command) == (entrypoint.callable is not None):
        raise InvalidInput("entrypoint", msgspec.to_builtins(entrypoint), "give a command or a callable, one of them")
    if entrypoint.command and not entrypoint.command[0]:
        raise InvalidInput("entrypoint.command", entrypoint.command, "the program's name is empty")
    if any("\0" in part for part in entrypoint.command):
        raise InvalidInput("entrypoint.command", entrypoint.command, "no part may hold a NUL character")
    call = entrypoint.callable
    if call is not None and bool(call.pickle) == bool(call.blob):
        raise InvalidInput("entrypoint.callable", msgspec.to_builtins(call), "give pickle or blob, one of them")


def _check_resources(resources: ResourceSpec) -> None:
    if not 0 <= resources.cpu <= 100_000:
        raise InvalidInput("resources.cpu", resources.cpu, "give a number of cores of at least 0")
    device = resources.device
    if device is None:
        return
    if device.kind not in ("cpu", "gpu", "tpu"):
        raise InvalidInput("resources.device.kind", device.kind, "the kinds are cpu, gpu and tpu")
    if device.count < 1:
        raise InvalidInput("resources.device.count", device.count, "give at least 1, or leave the device out")
    if device.variant:
        check_name("resources.device.variant", device.variant, MAX_VARIANT)


def _check_environment(environment: EnvironmentSpec) -> None:
    both = set(environment.env_vars) & set(environment.secret_env_vars)
    for name in sorted(both):
        raise InvalidInput(f"environment.env_vars.{name}", "...", "it stands in secret_env_vars too; give it once")
    for part in ("env_vars", "secret_env_vars"):
        for name, value in getattr(environment, part).items():
            if not name or "=" in name or "\0" in name:
                raise InvalidInput(f"environment.{part}", name, "a name is not empty and has no '=' and no NUL")
            if "\0" in value:
                raise InvalidInput(f"environment.{part}.{name}", "...", "a value cannot hold a NUL character")


def _check_numbers(spec: JobSpec) -> None:
    if spec.replicas != 1:
        raise InvalidInput("replicas", spec.replicas, "gangs come in a later release; give 1 and submit several jobs")
    if spec.priority not in PRIORITIES:
        raise InvalidInput("priority", spec.priority, f"give {PRIORITIES.start} to {PRIORITIES.stop - 1}")
    for field in ("max_retries_failure", "max_retries_preemption", "grace"):
        if getattr(spec, field) < 0:
            raise InvalidInput(field, getattr(spec, field), "give 0 or more")
    for field in ("timeout", "pending_timeout"):
        value = getattr(spec, field)
        if value is not None and value <= 0:
            raise InvalidInput(field, value, "give seconds above 0, or leave it out for no limit")
    check = spec.health_check
    if check is not None:
        if not 1 <= check.port <= 65535:
            raise InvalidInput("health_check.port", check.port, "give a port from 1 to 65535")
        if not check.path.startswith("/"):
            raise InvalidInput("health_check.path", check.path, "it begins with '/'")
        for field in ("interval", "timeout", "failures"):
            if getattr(check, field) <= 0:
                raise InvalidInput(f"health_check.{field}", getattr(check, field), "give a number above 0")
