"""Options that several commands share: devices, the folder of code, the host's place, and the standard input.

On a VM of Google Cloud, the metadata server says what the options about the place leave open. The standard input of a
command that submits is stored, and each attempt of the job reads it from its start.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import secrets
import select
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec.structs import replace

from fray.cli import output
from fray_layouts.errors import InvalidInput
from fray_layouts.units import format_bytes, parse_seconds

if TYPE_CHECKING:
    from fray.resources import DeviceConfig
    from fray.workspace.choice import WorkspaceChoice
    from fray.workspace.upload import StoredWorkspace
    from fray_agents.agent.devices import CheckChips
    from fray_agents.host.capacity import HostPlace
    from fray_agents.host.gce_metadata import GceHost
    from fray_layouts.records import Resources, SliceMember

log = logging.getLogger("fray")


def device_of(gpus: str | None, tpu: str | None) -> DeviceConfig:
    """The device that a job asks for. Raises UsageError if both options are given, and what `parse_gpus` raises."""
    from fray.resources import CpuConfig, GpuConfig, TpuConfig

    if gpus is not None and tpu is not None:
        raise click.UsageError("--gpus and --tpu cannot be combined; give one of them")
    if tpu is not None:
        return TpuConfig(tpu)
    if gpus is None:
        return CpuConfig()
    kind, count = parse_gpus(gpus)
    return GpuConfig(kind or "auto", count)


def parse_gpus(text: str) -> tuple[str, float]:
    """Kind and count of the GPUs in "8" (any kind: ""), "h100:8" or "0.5". Raises InvalidInput if there is no count."""
    kind, _, count = text.rpartition(":")
    if not re.fullmatch(r"[0-9]+|0?\.[0-9]+", count):
        raise InvalidInput("--gpus", text, "give a count, or kind:count such as h100:8")
    return kind, int(count) if count.isdecimal() else float(count)


class DurationType(click.ParamType[float]):
    """The type of an option in seconds, for which people may write a duration such as 10m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return parse_seconds(param.opts[0] if param else "", value)


F = TypeVar("F", bound=Callable[..., Any])


def workspace_options(command: F) -> F:
    """Give a command `--workspace` and `--no-workspace`."""
    named = click.option(
        "--workspace", metavar="DIR", help="Folder that the job gets a copy of; by default the current project."
    )
    none = click.option("--no-workspace", is_flag=True, help="Give the job no folder.")
    return named(none(command))


def chosen_workspace(folder: str | None, none: bool) -> WorkspaceChoice | None:
    """The workspace that the options choose; by default the project around the current directory, if there is one."""
    from fray.workspace.choice import WorkspaceChoice, named_workspace

    if folder is not None and none:
        raise click.UsageError("--workspace and --no-workspace contradict each other; give one of them")
    if none:
        return None
    return WorkspaceChoice() if folder is None else named_workspace(folder, Path())


def print_stored(workspace: StoredWorkspace) -> None:
    """Print on stderr, in one line, which workspace was stored."""
    output.echo(f"fray: {workspace}", err=True)


def parse_place(
    zone: str, region: str, label: Sequence[str], tpu: str | None, slice_name: str | None, worker: int | None
) -> HostPlace:
    """The place that the options describe. Raises InvalidInput if they contradict each other or have a wrong value."""
    from fray_agents.host.capacity import HostPlace
    from fray_layouts.spec_parsing import check_name

    for option, value in (("--zone", zone), ("--region", region)):
        if value:
            check_name(option, value)
    return HostPlace(zone, region, dict(parse_label(text) for text in label), _parse_slice(tpu, slice_name, worker))


def read_vm(server: str | None) -> GceHost:
    """What this host's metadata server says; empty if there is no server, or if it does not answer, which is logged.

    Raises InvalidInput if it has a wrong value for the pool, the machine, a label or a slice.
    """
    from fray_agents.host.gce_metadata import GceHost, MetadataUnavailable, read_host

    try:
        return read_host(server) if server else GceHost()
    except MetadataUnavailable as error:
        log.warning("the metadata server did not answer, so only the options say where this host is: %s", error)
        return GceHost()


def at_vm(place: HostPlace, vm: GceHost) -> HostPlace:
    """The place that the options describe, completed from the VM's metadata."""
    return dataclasses.replace(
        place,
        zone=place.zone or vm.zone,
        region=place.region or vm.region,
        labels={**vm.labels, **place.labels},
        slice=place.slice or vm.slice,
    )


def parse_label(text: str) -> tuple[str, str]:
    """The name and the value of a label. Raises InvalidInput if it is not name=value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidInput("--label", text, "give name=value, such as disk=ssd")
    return name, value


def _parse_slice(tpu: str | None, name: str | None, worker: int | None) -> SliceMember | None:
    from fray_layouts.records import SliceMember
    from fray_layouts.spec_parsing import check_name
    from fray_layouts.topology import get_tpu_topology

    if tpu is None:
        for option, value in (("--slice", name), ("--worker", worker)):
            if value is not None:
                raise InvalidInput(option, value, "give the type of the slice too, such as --tpu v5litepod-16")
        return None
    try:
        hosts = get_tpu_topology(tpu).vm_count
    except InvalidInput as error:
        raise InvalidInput("--tpu", tpu, error.remedy) from None
    if hosts == 1 and name is None:
        name = f"{tpu}-{secrets.token_hex(6)}"  # a slice of one host needs no name by which others find it
    if name is None:
        raise InvalidInput("--slice", name, f"a {tpu} has {hosts} hosts: give each of them the name of their slice")
    if worker is None and hosts > 1:
        raise InvalidInput("--worker", worker, f"a {tpu} has {hosts} hosts: say which one this is, from 0")
    if not 0 <= (index := worker or 0) < hosts:
        raise InvalidInput("--worker", worker, f"the hosts of a {tpu} are numbered from 0 to {hosts - 1}")
    check_name("--slice", name)
    return SliceMember(id=name, type=tpu, index=index, hosts=hosts)


def with_chips(found: Resources, tpu: str) -> Resources:
    """The resources of a host of a slice of this type: the host's own, and the chips that a host of the type has."""
    from fray_layouts.topology import get_tpu_topology

    return replace(found, device=f"tpu-{tpu}".lower(), device_count=get_tpu_topology(tpu).chips_per_vm)


def chip_check(capacity: Resources, is_tpu_vm: bool) -> CheckChips | None:
    """How the agent checks that its TPU chips can be used; None on a host that has none or only poses as a TPU host."""
    from fray_agents.host.accelerators import chip_files, chip_trouble

    has_tpu = capacity.device.startswith("tpu") and (is_tpu_vm or bool(chip_files()))
    return partial(chip_trouble, capacity.device_count) if has_tpu else None


MAX_BYTES = 64 * 1024**2
"""Most bytes of a job's standard input: they pass through the memory of this command, and of the agent."""

_WARN_AFTER = 2.0
"""Seconds after which a message says what the command waits for; most pipes end before that."""

_READ = 1 << 20
"""Bytes of one read."""


def piped_input(fd: int = 0) -> bytes:
    """All bytes of a file, a pipe or a socket on standard input; b"" if it is a terminal or closed.

    Raises:
        InvalidInput: there are more than `MAX_BYTES`.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # standard input is closed
        return b""
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return b""
    data, began, is_told = bytearray(), time.monotonic(), False
    while True:
        patience = None if is_told else max(0.0, began + _WARN_AFTER - time.monotonic())
        if not select.select([fd], [], [], patience)[0]:
            is_told = True
            output.echo(
                "fray: reading standard input to its end, for the job; add < /dev/null to give the job no input",
                err=True,
            )
            continue
        part = os.read(fd, _READ)
        if not part:
            return bytes(data)
        data += part
        if len(data) > MAX_BYTES:
            remedy = "put it into the bucket or into a file of the workspace, and let the job read it from there"
            raise InvalidInput("standard input", f"more than {format_bytes(MAX_BYTES)}", remedy)
