"""Where an actor is called: what its record says, and which of its addresses this process can use."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType

from fray.types import JobId, Namespace
from fray_agents.rpc import Target
from fray_layouts.records import EndpointRecord

ActorId = NewType("ActorId", str)


@dataclass(frozen=True)
class ActorEndpoint:
    """An actor that was found.

    Attributes:
        address: "host:port".
        job_id: the job that serves it, or stands for the program that does; "" if only the address is known.
        target: what to connect to.
    """

    actor_id: ActorId
    name: str
    address: str
    job_id: JobId
    namespace: Namespace
    metadata: Mapping[str, Any]
    target: Target = field(repr=False)

    @classmethod
    def of(cls, record: EndpointRecord) -> ActorEndpoint:
        """The endpoint that a record describes."""
        return cls(
            ActorId(record.actor_id),
            record.name,
            record.address,
            JobId(record.job),
            Namespace(record.namespace),
            record.metadata,
            target_of(record),
        )


def target_of(record: EndpointRecord) -> Target:
    """What to connect to: the Unix socket too, if the actor is on this host."""
    return Target(
        actor_id=record.name,
        tcp=record.address,
        unix=record.unix if record.host == host_identity() else "",
        identity=record.nonce,
        fingerprint=record.fingerprint,
    )


@functools.cache
def host_identity() -> str:
    """The same for processes of one user that share files and memory: not for two containers on one machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}-{os.stat('/proc/self/ns/mnt').st_ino}-{os.getuid()}"
