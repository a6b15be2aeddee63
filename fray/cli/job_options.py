"""The options of `fray run`: one for each field of a job, and the spec that they describe.

A test walks all fields of the spec; each has a row in `OF_FIELDS`, or its reason in `WITHOUT_OPTION`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from fray.cli.command_words import main_of
from fray.cli.options import device_of, parse_label
from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from fray_layouts.spec import JobSpec

F = TypeVar("F", bound=Callable[..., Any])

_DERIVED_NAME_LENGTH = 64
"""Characters of a program's name that become the job's: half of what a name may have, so that tables stay readable."""


class FieldOption(NamedTuple):
    """An option that sets a field of a spec.

    Attributes:
        flags: its names; the first one is that of its parameter.
        help: one line for people.
        settings: further arguments of `click.option`.
        read: makes the field's value of the option's; None takes that itself, or several as a list.
    """

    flags: tuple[str, ...]
    help: str
    settings: Mapping[str, Any] = {}
    read: Callable[[Any], Any] | None = None

    @property
    def parameter(self) -> str:
        """The name under which click passes its value."""
        return self.flags[0].partition("/")[0].removeprefix("--").replace("-", "_")


def _one(flag: str, help: str, metavar: str | None = None, type: Any = None) -> FieldOption:
    return FieldOption((flag,), help, {"metavar": metavar, "type": type, "default": None})


def _many(flag: str, metavar: str, help: str, read: Callable[[Any], Any] | None = None, *others: str) -> FieldOption:
    return FieldOption((flag, *others), f"{help[:-1]}; may be repeated.", {"metavar": metavar, "multiple": True}, read)


def _switch(flags: str, help: str) -> FieldOption:
    return FieldOption((flags,), help, {"is_flag": True, "default": None})


def variables(option: str, given: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE, or NAME alone for its value in this shell. Raises InvalidInput, without showing values."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise InvalidInput(option, name, "it is not set in this shell; write NAME=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _health_check(text: str) -> dict[str, Any]:
    """The fields in "8080/healthz,interval=5,failures=2". Raises InvalidInput if there is no port, or no such field."""
    from fray_layouts.spec import HealthCheckSpec

    address, *others = text.split(",")
    port, slash, path = address.partition("/")
    pairs = [other.partition("=") for other in others]
    known = set(HealthCheckSpec.__struct_fields__) - {"port", "path"}
    if not port.isdecimal() or any(name not in known for name, _, _ in pairs):
        remedy = f"give PORT or PORT/PATH, and after commas {', '.join(sorted(known))}, as in 8080/healthz,failures=5"
        raise InvalidInput("--health-check", text, remedy)
    fields: dict[str, Any] = {name: int(value) if value.isdecimal() else value for name, _, value in pairs}
    return {"port": int(port), **fields, **({"path": slash + path} if slash else {})}


OF_FIELDS = {
    "name": _one("--name", "Name of the job; by default that of the module, script or program."),
    "id": _one("--id", "Submit it once: a second run with this name and id follows the first job.", "ID"),
    "resources.cpu": _one("--cpu", "Cores; 1 by default.", type=float),
    "resources.hard_cpu": _switch("--hard-cpu", "Limit it to its cores, even while others are idle."),
    "resources.memory": _one("--memory", "Memory, such as 512MiB or 2GB.", "SIZE"),
    "resources.disk": _one("--disk", "Scratch space, such as 20GB.", "SIZE"),
    "resources.device_alternatives": _many(
        "--or", "TYPE", "Another type of GPU or TPU that will do as well, such as a100, in order of preference."
    ),
    "replicas": _one(
        "--replicas", "Processes that run as one gang; with --tpu by default those of one slice.", type=int
    ),
    "spread": _switch("--spread", "Run each replica on an agent of its own."),
    "same": _one("--same", "Run all replicas in the same zone or region.", type=click.Choice(["zone", "region"])),
    "pool": _one("--pool", 'Pool whose agents may run it; "default" by default.'),
    "resources.preemptible": _switch(
        "--preemptible/--no-preemptible", "Whether the cloud may take its host away; it may by default."
    ),
    "resources.regions": _many("--region", "NAME", "Region that it may run in; by default any."),
    "resources.zone": _one("--zone", "Zone that it must run in.", "NAME"),
    "resources.labels": _many(
        "--label", "NAME=VALUE", "Label that its agent must have.", lambda given: dict(map(parse_label, given))
    ),
    "environment.env_vars": _many(
        "--env",
        "NAME[=VALUE]",
        "An environment variable, by default with its value here.",
        lambda given: variables("--env", given),
        "-e",
    ),
    "environment.secret_env_vars": _many(
        "--secret",
        "NAME[=VALUE]",
        "As --env, but no command shows its value.",
        lambda given: variables("--secret", given),
    ),
    "environment.extras": _many("--extra", "NAME", "An extra of the project, to install with its packages."),
    "environment.groups": _many("--group", "NAME", "A dependency group of the project, such as dev, to install too."),
    "environment.pip_packages": _many("--with", "PACKAGE", "A requirement to install on top."),
    "environment.python": _one("--python", "Versions of Python that will do, such as '>=3.11'.", "VERSIONS"),
    "environment.docker_image": _one("--image", "Container image that the job runs in."),
    "ports": _many("--port", "NAME", "Reserve a port; its number is in FRAY_PORT_<NAME>."),
    "outputs": _many("--output", "PATTERN", "Files to keep when it succeeds, such as 'out/**', for `fray pull`."),
    "log_limit": _one("--log-limit", "Output to keep, such as 10GB; of more, the first and the last half.", "SIZE"),
    "health_check": FieldOption(
        ("--health-check",),
        "End an attempt whose server does not answer there, as in 8080/healthz or 8080/healthz,interval=5,failures=2.",
        {"metavar": "PORT[/PATH]"},
        _health_check,
    ),
    "max_retries_failure": _one("--retries", "Further attempts after failures; 0 by default.", type=int),
    "max_retries_preemption": _one(
        "--preemption-retries", "Further attempts after its host was taken away or died; 100 by default.", type=int
    ),
    "timeout": _one("--timeout", "Time that an attempt may run: seconds, or 10m.", "DURATION"),
    "pending_timeout": _one("--pending-timeout", "Stop it if it has not started after this time.", "DURATION"),
    "grace": _one("--grace", "Time between SIGTERM and SIGKILL when it is stopped; 10 s by default.", "DURATION"),
    "outage": _one(
        "--outage",
        "What it does while the storage does not answer: run on for a while, or stop, so that no two attempts overlap.",
        type=click.Choice(["run", "stop"]),
    ),
    "priority": _one("--priority", "From -500 to 499; a higher one goes first.", type=int),
    "namespace": _one("--namespace", "Scope of names; by default FRAY_NAMESPACE, else one of the job's own."),
    "user": _one("--user", "Who submits it, for people and the bill; by default your login name.", "NAME"),
    "parent": _one("--parent", "Job whose end ends this one; by default the job that runs this command.", "JOB"),
    "detached": _switch("--detached", "Let it outlive its parent; see --detach to return at once."),
}
"""The option of each field, by the field's path in the spec, in the order in which --help lists them."""

WITHOUT_OPTION = {
    "entrypoint": "the words behind the options are the command, and standard input is read",
    "environment.workspace": "--workspace and --no-workspace choose it, and storing it makes the field",
    "resources.device": "--gpus and --tpu",
    "slices": "--tpu and --replicas give their number",
    "actor": "an actor serves a Python object, which a program creates",
}
"""Why a field has no option of its own."""


def job_options(command: F) -> F:
    """Give a command an option for each field of a job, and those for its device."""
    gpus = click.option("--gpus", help="GPUs: a count, or kind:count such as h100:8; 0.5 shares one.")
    tpu = click.option(
        "--tpu", metavar="TYPE", help="TPU slices, such as v5litepod-16, with a process on each virtual machine."
    )
    for field, option in reversed(OF_FIELDS.items()):
        command = click.option(*option.flags, option.parameter, help=option.help, **option.settings)(command)
        if field == "resources.device_alternatives":
            command = gpus(tpu(command))
    return command


def spec_of(words: Sequence[str], options: Mapping[str, Any]) -> JobSpec:
    """Make the checked spec of a command from the options that were given, by the names of their parameters.

    Raises:
        InvalidInput: an option's value is not accepted; the error names the option.
    """
    from fray.job_spec import device_fields, gang_size
    from fray.resources import ResourceConfig
    from fray_layouts.spec_parsing import parse_spec

    name = options["name"] or _derived_name(main_of(words).name)
    spec: dict[str, Any] = {"entrypoint": {"command": list(words)}, "resources": {}, "environment": {}}
    for field, option in OF_FIELDS.items():
        given = options[option.parameter]
        if given is None or given == ():
            continue
        part, _, last = field.rpartition(".")
        plain = list(given) if isinstance(given, tuple) else given
        (spec[part] if part else spec)[last] = plain if option.read is None else option.read(given)
    device = device_of(options["gpus"], options["tpu"])
    try:
        spec["resources"]["device"] = device_fields(device)
        size = gang_size(ResourceConfig(device=device, replicas=options["replicas"]))
        return parse_spec({**spec, **size, "name": name})
    except InvalidInput as error:
        raise InvalidInput(_named(error.field), error.value, error.remedy) from None


def _named(field: str) -> str:
    """The option that sets a field of which an error tells; the field itself if there is none."""
    if field == "tpu_type":
        return "--tpu"
    known = re.match(r"(?:resources\.|environment\.)?[a-z_]+", field)
    option = OF_FIELDS.get(known[0]) if known else None
    return field if option is None else option.flags[0].partition("/")[0]


def _derived_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]|\.\.+", "-", name).strip("-._")[:_DERIVED_NAME_LENGTH].rstrip("-._") or "job"
