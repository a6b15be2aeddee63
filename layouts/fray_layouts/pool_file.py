"""The structs of `fray.yaml`, the file in which people define a cluster's pools.

`fray_layouts.pool_file_parsing` reads it; the schema `fray-file` is for editors.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fray_layouts.bounds import MAX_IMAGE, Count, Name
from fray_layouts.records.machine import MachineSettings
from fray_layouts.spec import DeviceSpec, SpecPart


class HostCapacity(SpecPart, kw_only=True):
    """The resources that the agent of each host offers, written like a job's `resources`.

    Attributes:
        cpu: cores; 0 for all cores of the host.
        memory: bytes, or text such as "8GB"; 0 for all memory of the host.
        disk: bytes for tasks, or text; 0 for all free space.
        device: accelerators of the host.
    """

    cpu: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    memory: Count = 0
    disk: Count = 0
    device: DeviceSpec | None = None


class WarmEnvironment(SpecPart, kw_only=True):
    """An environment that each agent of the pool prepares before it claims.

    Attributes:
        workspace: folder of the project whose packages it has, relative to the file; "" for none.
        extras: extras of the project that are installed with its packages.
        pip_packages: requirements that are installed on top.
        docker_image: the container image to pull; "" for none.
    """

    workspace: str = ""
    extras: list[str] = msgspec.field(default_factory=list)
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
