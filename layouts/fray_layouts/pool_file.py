"""The file in which people say what pools a cluster has: `fray.yaml`.

`fray_layouts.pool_file_parsing` reads it, the schema `fray-file` is for editors.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fray_layouts.bounds import MAX_IMAGE, Count, Name
from fray_layouts.records.machine import MachineSettings
from fray_layouts.spec import DeviceSpec, SpecPart


class HostCapacity(SpecPart, kw_only=True):
    """The resources that the agent of each host offers, in the words of a job's `resources`.

    Attributes:
        cpu: cores; 0: all that the host has.
        memory: bytes, or text such as "8GB"; 0: all that the host has.
        disk: bytes, or text, for tasks; 0: all that is free.
        device: accelerators of the host.
    """

    cpu: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    memory: Count = 0
    disk: Count = 0
    device: DeviceSpec | None = None


class WarmEnvironment(SpecPart, kw_only=True):
    """An environment that each agent of the pool makes ready before it claims.

    Attributes:
        workspace: folder of the project whose packages it has, relative to the file; "" for none.
        extras: of the project, installed with its packages.
        pip_packages: requirements that are installed on top.
        docker_image: the container image that is pulled; "" for none.
    """

    workspace: str = ""
    extras: list[str] = msgspec.field(default_factory=list)
    pip_packages: list[str] = msgspec.field(default_factory=list)
    docker_image: Annotated[str, Meta(max_length=MAX_IMAGE)] = ""


class WrittenPool(MachineSettings, kw_only=True, omit_defaults=True):
    """A pool of the file.

    Attributes:
        capacity: of each host; absent: as the machine type has it.
        environments: that its agents make ready, in this order; absent: those that the pool has stay as they are.
    """

    capacity: HostCapacity | None = None
    environments: list[WarmEnvironment] | None = None


class FrayFile(SpecPart, kw_only=True):
    """`fray.yaml`: the pools of a cluster. A pool that the file does not name stays as it is."""

    pools: dict[Name, WrittenPool] = msgspec.field(default_factory=dict)
