"""Pools as people write them in `fray.yaml`: the structs of the file, and how they become settings of pools.

Options of `fray pool set` and Python's `set_pool` go through the same structs; the schema `fray-file` is for editors.
Every error is an `InvalidInput` that names the field as it was written, the value, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fray_layouts import other_fields
from fray_layouts.bounds import MAX_IMAGE, Bytes, Name
from fray_layouts.errors import InvalidInput
from fray_layouts.parsing import REDACTED, read_struct, refuse_unknown
from fray_layouts.pool_checks import checked_provisioning
from fray_layouts.records import MachineSettings, ProvisioningSpec, Resources
from fray_layouts.spec import DeviceSpec, SpecPart
from fray_layouts.spec_parsing import check_name


class HostCapacity(SpecPart, kw_only=True):
    """The resources that the agent of each host offers, written like a job's `resources`.

    Attributes:
        cpu: cores; 0 for all cores of the host.
        memory: bytes, or text such as "8GB"; 0 for all memory of the host.
        disk: bytes for tasks, or text; 0 for all free space.
        device: accelerators of the host.
    """

    cpu: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    memory: Bytes = 0
    disk: Bytes = 0
    device: DeviceSpec | None = None


class WarmEnvironment(SpecPart, kw_only=True):
    """An environment that each agent of the pool prepares before it claims.

    Attributes:
        workspace: folder of the project whose packages it has, relative to the file; "" for none.
        extras: extras of the project that are installed with its packages.
        groups: dependency groups of it that are installed too.
        pip_packages: requirements that are installed on top.
        docker_image: the container image to pull; "" for none.
    """

    workspace: str = ""
    extras: list[str] = msgspec.field(default_factory=list)
    groups: list[str] = msgspec.field(default_factory=list)
    pip_packages: list[str] = msgspec.field(default_factory=list)
    docker_image: Annotated[str, Meta(max_length=MAX_IMAGE)] = ""


class WrittenPool(MachineSettings, kw_only=True, omit_defaults=True):
    """A pool of the file.

    Attributes:
        capacity: of each host; if absent, that of the machine type.
        environments: environments that its agents prepare, in this order; if absent, the pool's present ones stay.
    """

    capacity: HostCapacity | None = None
    environments: list[WarmEnvironment] | None = None


class FrayFile(SpecPart, kw_only=True):
    """`fray.yaml`: the pools of a cluster. A pool that the file does not name stays as it is."""

    pools: dict[Name, WrittenPool] = msgspec.field(default_factory=dict)


_LISTS = ("zones", "environments")


class PoolToSet(msgspec.Struct, frozen=True):
    """A pool that was parsed and checked. environments: None leaves the pool's present environments unchanged."""

    provisioning: ProvisioningSpec
    environments: list[WarmEnvironment] | None = None


def parse_fray_file(document: object) -> dict[str, PoolToSet]:
    """Parse the pools of a file, by name. document: the content of its YAML or JSON.

    Raises InvalidInput: the first fault, named by its place in the file, such as "pools.tpu.zones".
    """
    if not isinstance(document, Mapping):
        raise InvalidInput("file", REDACTED, 'it must hold "pools:" and below it the name of each pool')
    unknown = [key for key in document if key not in FrayFile.__struct_fields__]
    if unknown:
        remedy = 'there is no such field; the only one here is "pools", with the name of each pool below it'
        raise InvalidInput(str(unknown[0]), REDACTED, remedy)
    pools = document.get("pools")
    if not isinstance(pools, Mapping) or not pools:
        raise InvalidInput("pools", pools, "give at least one pool: its name, and below it provider, max and so on")
    return {name: _named(name, raw) for name, raw in pools.items()}


def _named(name: object, raw: object) -> PoolToSet:
    where = f"pools.{name}"
    check_name("pools", name)
    if not isinstance(raw, Mapping):
        raise InvalidInput(where, raw, "give its fields, at least provider, below its name")
    try:
        return parse_pool(raw)
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{error.field}", error.value, error.remedy) from None


def parse_pool(raw: Mapping[str, Any]) -> PoolToSet:
    """Parse one pool. Raises InvalidInput: the first fault, by the name of its field."""
    refuse_unknown(raw, WrittenPool, {}, other_fields.OF_POOLS)
    for field in _LISTS:
        if isinstance(raw.get(field), str | Mapping):
            raise InvalidInput(field, raw[field], "give a list, even for one entry: [...]")
    written = read_struct(raw, WrittenPool, "pool")
    settings = {name: getattr(written, name) for name in MachineSettings.__struct_fields__}
    spec = ProvisioningSpec(**settings, capacity=host_resources(written.capacity) if written.capacity else None)
    return PoolToSet(checked_provisioning(spec), written.environments)


def host_resources(capacity: HostCapacity) -> Resources:
    """Convert the capacity to the form that agents publish. Raises InvalidInput: a host cannot have such a device."""
    device = capacity.device
    name, count = "", 0
    if device is not None and device.kind != "cpu":
        if device.kind not in ("gpu", "tpu"):
            raise InvalidInput("capacity.device.kind", device.kind, "the kinds are cpu, gpu and tpu")
        if not isinstance(device.count, int):
            raise InvalidInput(
                "capacity.device.count", device.count, "a host has whole devices; only jobs may share one"
            )
        name, count = "-".join(filter(None, (device.kind, device.variant.lower()))), device.count
    return Resources(
        cpu=round(capacity.cpu * 1000), memory=capacity.memory, disk=capacity.disk, device=name, device_count=count
    )
