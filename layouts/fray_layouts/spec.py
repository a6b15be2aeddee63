"""The spec of a job, as a person writes it, and its validation.

`parse_spec` is the only way in: from a file in the inbox, from `fray submit` and from the Python API alike. Every
complaint is an `InvalidInput` that names the field as it was written, the value, and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fray_layouts.bounds import (
    MAX_CALLABLE_NAME,
    MAX_IMAGE,
    MAX_JOB_ID,
    MAX_NAME,
    MAX_VARIANT,
    MAYBE_NAME_PATTERN,
    MAYBE_PYTHON_PATTERN,
    NAME_PATTERN,
    REMEDIES,
    Attempts,
    Count,
    Interval,
    Key,
    MaybeJobId,
    MaybeName,
    Name,
    Seconds,
)
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.key_encoding import ID_DIGEST_DIGITS
from fray_layouts.parsing import parse_json
from fray_layouts.path_patterns import check_patterns
from fray_layouts.units import parse_bytes

MAX_INLINE_BYTES = 64 * 1024
"""Bytes of a callable or a result in a job's record: larger ones are objects of their own; records are read often."""


class SpecPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of the parts of a spec."""


class CallableSpec(SpecPart, kw_only=True):
    """A pickled Python call.

    Attributes:
        pickle: base64 of cloudpickle of (function, args, kwargs), or
        blob: the key of the object that holds the pickle.
        name: of what is called, for people: "trainer.train".
        python: minor version of the interpreter that pickled it, as "3.11"; code objects load in no other. "": unknown.
    """

    pickle: str = ""
    blob: Key = ""
    name: Annotated[str, Meta(max_length=MAX_CALLABLE_NAME)] = ""
    python: Annotated[str, Meta(pattern=MAYBE_PYTHON_PATTERN)] = ""


class EntrypointSpec(SpecPart, kw_only=True):
    """The code to run: a command (program and arguments, no shell), or a callable. Exactly one."""

    command: list[str] = []
    callable: CallableSpec | None = None


class DeviceSpec(SpecPart, kw_only=True):
    """An accelerator. kind: "cpu", "gpu" or "tpu"; variant: "h100", "v5litepod-16" ...

    count: per replica; a part of one GPU, such as 0.5, is shared with other jobs.
    """

    kind: Annotated[str, Meta(pattern=NAME_PATTERN, max_length=16)] = "cpu"
    variant: Annotated[str, Meta(pattern=MAYBE_NAME_PATTERN, max_length=MAX_VARIANT)] = ""
    count: Annotated[int, Meta(ge=1, le=10**6)] | Annotated[float, Meta(gt=0, lt=1)] = 1


UNASKED_MEMORY, UNASKED_DISK = 128 * 10**6, 10**9
"""Bytes that programs reserve for jobs that say nothing about it: `ResourceConfig` has had these defaults for ever, and
who has not asked for 128 MB shall not be killed at 128 MB."""


class ResourceSpec(SpecPart, kw_only=True):
    """The resources that one replica needs while it runs.

    Attributes:
        cpu: cores; fractions to a thousandth. A share while others want the same ones.
        hard_cpu: the task never has more than `cpu` cores, also while others are idle.
        memory: bytes that are reserved, and that the task may use; people may write text such as "2GB", "512MiB", and
            `ram` is the same thing. 0 and `UNASKED_MEMORY` are no limit.
        disk: bytes of scratch space; people may write text. 0 and `UNASKED_DISK` are no limit.
        preemptible: false keeps the job off hosts that may be taken away.
    """

    cpu: Annotated[float, Meta(ge=0, le=100_000)] = 1.0
    hard_cpu: bool = False
    memory: Count = 0
    disk: Count = 0
    device: DeviceSpec | None = None
    preemptible: bool = True


class WorkspaceSpec(SpecPart, kw_only=True):
    """A folder of code that travels with the job, as one archive (`docs/environments.md` has its format).

    Attributes:
        blob: key of the archive.
        size, files: its bytes and entries, for people.
        dependencies: name of the file at its top that states the packages: "uv.lock", "requirements.txt",
            "pyproject.toml"; "" if none does.
        folder: where in it the job starts; "" is its top.
    """

    blob: Key
    size: Count = 0
    files: Count = 0
    dependencies: str = ""
    folder: str = ""


class EnvironmentSpec(SpecPart, kw_only=True):
    """The environment of the job's processes: variables, code, packages, image.

    Attributes:
        env_vars: variables; they win over the agent's own.
        secret_env_vars: variables whose values no command ever shows.
        workspace: code that the job brings; each attempt starts in a copy of its own.
        extras: of the workspace's project, installed with its packages.
        pip_packages: requirements that are installed on top.
        python: the versions of Python that will do, as a PEP 440 specifier such as ">=3.11"; "" is any.
        docker_image: the container image that the job runs in; "" runs it on the host.
    """

    env_vars: dict[str, str] = {}
    secret_env_vars: dict[str, str] = {}
    workspace: WorkspaceSpec | None = None
    extras: list[str] = []
    pip_packages: list[str] = []
    python: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    docker_image: Annotated[str, Meta(max_length=MAX_IMAGE)] = ""


def needs_environment(environment: EnvironmentSpec) -> bool:
    """Whether the job runs with packages of its own, which its agent installs."""
    stated = environment.workspace is not None and bool(environment.workspace.dependencies)
    return stated or bool(environment.extras or environment.pip_packages)


def blobs_of(spec: JobSpec) -> list[str]:
    """Keys of the blobs without which the job cannot run."""
    call, workspace = spec.entrypoint.callable, spec.environment.workspace
    named = (call.blob if call is not None else "", workspace.blob if workspace is not None else "")
    return [key for key in named if key]


class HealthCheckSpec(SpecPart, kw_only=True):
    """An HTTP route on the task's host that must answer 2xx.

    Attributes:
        path, port: where; the agent asks on the loopback address.
        interval: seconds between questions.
        timeout: seconds for one answer.
        grace: seconds after the start in which failing does not count.
        failures: failures in a row that end the attempt as a failure.
    """

    path: Annotated[str, Meta(pattern="^/")] = "/"
    port: Annotated[int, Meta(ge=1, le=65535)]
    interval: Interval = 10.0
    timeout: Interval = 5.0
    grace: Seconds = 30.0
    failures: Annotated[int, Meta(ge=1, le=10**6)] = 3


class JobSpec(SpecPart, kw_only=True):
    """A job, as a person writes it.

    Attributes:
        name: shown to people; the job's id is this name and a unique suffix.
        id: makes resubmission idempotent: the same id, name and namespace find the first job, which must run the same.
            Part of the job's id.
        replicas: processes that run as one gang.
        max_retries_failure: further attempts after the job's own failures.
        max_retries_preemption: further attempts after its host went away.
        timeout: seconds one attempt may run.
        pending_timeout: seconds the job may wait to be started before it is stopped.
        grace: seconds between SIGTERM and SIGKILL when it is stopped or preempted.
        priority: from -500 to 499; higher goes first.
        namespace: scope of the names of jobs, actors and queues; by default the parent's, else the job's own id.
        parent: id of the job that ends this one when it ends.
        detached: the job outlives its parent.
        pool: group of agents that may run it.
        actor: it serves calls: only agents that accept connections run it; it is killed as soon as its agent's leases
            may no longer be relied on, and restarted on its host when it fails and has retries left.
        ports: names of ports that it has for itself on its host; it finds their numbers as FRAY_PORT_<NAME>.
        outputs: patterns of the files that are kept when it succeeds, by their paths from where it starts.
    """

    name: Name
    entrypoint: EntrypointSpec
    id: MaybeName = ""
    resources: ResourceSpec = msgspec.field(default_factory=ResourceSpec)
    environment: EnvironmentSpec = msgspec.field(default_factory=EnvironmentSpec)
    replicas: Annotated[int, Meta(ge=1, le=10**6)] = 1
    max_retries_failure: Attempts = 0
    max_retries_preemption: Attempts = 100
    timeout: Interval | None = None
    pending_timeout: Interval | None = None
    grace: Seconds = 10.0
    priority: Annotated[int, Meta(ge=-500, le=499)] = 0
    namespace: MaybeJobId = ""
    parent: MaybeJobId = ""
    detached: bool = False
    pool: Name = "default"
    actor: bool = False
    health_check: HealthCheckSpec | None = None
    ports: list[Name] = []
    outputs: list[str] = []


MAX_PORTS = 16
"""Ports of one job: a host has 10,000 for all of its jobs."""
MAX_NAME_AND_ID = MAX_JOB_ID - len("--") - ID_DIGEST_DIGITS
"""Characters of a name and an own id together."""
REDACTED = "..."
"""Shown instead of what may be a secret: text in a field of an unknown name, and anything in the environment."""
_MAX_COMPARED_CHARACTERS = 64
"""Characters of an unknown field's name that are compared with those that there are."""
SIZE_FIELDS = ("memory", "disk")
"""Resources that people may write as text with a unit."""
_ALIASES = {"resources": {"ram": "memory"}}


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
    return _validated(spec)


def _validated(spec: JobSpec) -> JobSpec:
    """The same spec; raises InvalidInput for the first fault that its types and bounds do not show."""
    _check_storable("", msgspec.to_builtins(spec))
    if spec.id and len(spec.name) + len(spec.id) > MAX_NAME_AND_ID:
        raise InvalidInput("id", spec.id, f"give name and id of at most {MAX_NAME_AND_ID} characters together")
    _check_entrypoint(spec.entrypoint)
    _check_environment(spec.environment)
    _check_ports(spec.ports)
    check_patterns("outputs", spec.outputs)
    if spec.replicas != 1:
        raise InvalidInput("replicas", spec.replicas, "gangs come in a later release; give 1 and submit several jobs")
    device = spec.resources.device
    if device is not None and device.kind not in ("cpu", "gpu", "tpu"):
        raise InvalidInput("resources.device.kind", device.kind, "the kinds are cpu, gpu and tpu")
    if device is not None and device.count < 1 and (device.kind != "gpu" or device.count != round(device.count, 3)):
        raise InvalidInput("resources.device.count", device.count, "give whole ones, or thousandths of one GPU")
    return spec


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
    same = _ALIASES.get(path, {})
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
    for part, spellings in _ALIASES.items():
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
        raise InvalidInput(field, REDACTED, "the text holds bytes that are not UTF-8")


def check_namespace(value: object) -> None:
    """Raise InvalidInput unless `value` can be a namespace."""
    check_name("namespace", value, MAX_JOB_ID)


def check_name(field: str, value: object, longest: int = MAX_NAME) -> None:
    """Raise InvalidInput naming `field` unless `value` can be part of a key."""
    if not isinstance(value, str):
        raise InvalidInput(field, value, "give a text")
    if len(value) > longest:
        raise InvalidInput(field, value, f"give at most {longest} characters")
    if not re.match(NAME_PATTERN, value):
        raise InvalidInput(field, value, REMEDIES[NAME_PATTERN])


def _check_entrypoint(entrypoint: EntrypointSpec) -> None:
    if bool(entrypoint.command) == (entrypoint.callable is not None):
        raise InvalidInput("entrypoint", msgspec.to_builtins(entrypoint), "give a command or a callable, one of them")
    if entrypoint.command and not entrypoint.command[0]:
        raise InvalidInput("entrypoint.command", entrypoint.command, "the program's name is empty")
    if any("\0" in part for part in entrypoint.command):
        raise InvalidInput("entrypoint.command", entrypoint.command, "no part may hold a NUL character")
    call = entrypoint.callable
    if call is not None and bool(call.pickle) == bool(call.blob):
        raise InvalidInput("entrypoint.callable", msgspec.to_builtins(call), "give pickle or blob, one of them")


def port_variable(name: str) -> str:
    """The variable in which a task finds the number of the port of this name."""
    return f"FRAY_PORT_{re.sub('[^A-Z0-9]', '_', name.upper())}"


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
        raise InvalidInput(f"environment.env_vars.{name}", REDACTED, "it stands in secret_env_vars too; give it once")
    for part in ("env_vars", "secret_env_vars"):
        for name, value in getattr(environment, part).items():
            if not name or "=" in name or "\0" in name:
                shown = f"{name.partition('=')[0]}=..." if "=" in name else name
                raise InvalidInput(f"environment.{part}", shown, "a name is not empty and has no '=' and no NUL")
            if "\0" in value:
                raise InvalidInput(f"environment.{part}.{name}", REDACTED, "a value cannot hold a NUL character")
