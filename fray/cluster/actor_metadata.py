"""The endpoints of a cluster's actors, and the keys with which callers and actors authenticate each other."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NewType, Protocol, TypeVar

from fray.types import JobId, Namespace
from fray_coordinator.actors import naming
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.core import Core
from fray_layouts.records import EndpointRecord
from fray_layouts.spec_parsing import check_name
from fray_rpc import Target
from fray_rpc.wire.key_cache import KeyCache

T = TypeVar("T")


class RunService(Protocol):
    """Runs a service on an open cluster and returns its result: `StorageCluster.run`."""

    def __call__(self, work: Callable[[Core], Awaitable[T]], /) -> T: ...


ActorId = NewType("ActorId", str)
"""Tells the actors of one name apart; an actor keeps it through restarts."""


@dataclass(frozen=True)
class ActorEndpoint:
    """An actor that was looked up, and the address to call it at.

    Attributes:
        actor_id: tells it apart from other actors of the same name.
        name: the actor's name.
        address: "host:port" of its server.
        job_id: the job that serves it, or the job that stands for the program that does; "" if only the address is
            known.
        namespace: the scope of its name.
        metadata: the metadata that it was registered with.
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
    """The addresses to connect to; the Unix socket is among them if the actor is on this host."""
    return Target(
        actor_id=record.name,
        tcp=record.address,
        unix=record.unix if record.host == host_identity() else "",
        identity=record.nonce,
        fingerprint=record.fingerprint,
    )


@functools.cache
def host_identity() -> str:
    """A name for this host that is equal for processes of one user that share files and memory.

    Two containers on one machine have different names.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}-{os.stat('/proc/self/ns/mnt').st_ino}-{os.getuid()}"


class Metadata:
    """Finds the endpoints of actors: `Cluster.metadata`. To call an actor, use a resolver.

    It finds the actors that an `ActorServer` has registered, while the server runs. Each method reads the storage and
    may raise `StoreUnavailable` or `StoreRefused`.
    """

    def __init__(self, run: RunService, namespace: str) -> None:
        self._run = run
        self._namespace = namespace

    def lookup(self, name: str) -> ActorEndpoint | None:
        """Look up one actor of that name; None if there is none.

        Raises:
            InvalidInput: no actor can have that name.
        """
        return next(iter(self.lookup_all(name)), None)

    def lookup_all(self, name: str) -> list[ActorEndpoint]:
        """Look up all actors of that name, of the latest incarnation.

        Raises:
            InvalidInput: no actor can have that name.
        """
        check_name("name", name)
        found = self._run(partial(naming.lookup, namespace=self._namespace, name=name))
        return [ActorEndpoint.of(record) for record in found]

    def list_actors(self, prefix: str = "") -> list[ActorEndpoint]:
        """List all actors of the namespace whose names begin with `prefix`, in order of their names."""
        found = self._run(partial(naming.lookup_prefix, namespace=self._namespace, prefix=prefix))
        return [ActorEndpoint.of(record) for record in found]


class ClusterKeyring(KeyCache):
    """The keys of one cluster, as this process last read them. It is a `fray_rpc.Keyring`."""

    def __init__(self, run: RunService) -> None:
        super().__init__(lambda: run(rpc_keys))
        self._run = run

    @functools.cached_property
    def encrypted(self) -> bool:
        """Whether calls are encrypted (TLS), as the cluster's settings say; they never change."""
        return self._run(_encrypt)


async def _encrypt(core: Core) -> bool:
    return core.settings.encrypt
