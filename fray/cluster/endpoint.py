"""`ActorEndpoint`: where an actor is called, as its record says."""

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
"""Tells the actors of one name apart; an actor keeps it through restarts."""


@dataclass(frozen=True)
class ActorEndpoint:
    """An actor that was found, and where it is called.

    Attributes:
        actor_id: tells it apart from others of its name.
        name: the name that it was found under.
        address: "host:port" of its server.
        job_id: the job that serves it, or stands for the program that does; "" if only the address is known.
        namespace: the scope of its name.
        metadata: what it was registered with.
        target: the addresses to connect to, and the server's identity.
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
        """Make the endpoint that a stored record describes."""
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
    """The addresses to connect to: with the Unix socket if the actor is on this host."""
    return Target(
        actor_id=record.name,
        tcp=record.address,
        unix=record.unix if record.host == host_identity() else "",
        identity=record.nonce,
        fingerprint=record.fingerprint,
    )


@functools.cache
def host_identity() -> str:
    """Names this host, as the processes of one user see it that share files and memory.

    Two containers on one machine have different names.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}-{os.stat('/proc/self/ns/mnt').st_ino}-{os.getuid()}"
