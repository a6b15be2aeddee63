"""`ActorServer`: serves actors that a program creates itself, under names that other programs look up.

The endpoint records are published when the server starts to serve, and withdrawn when it ends. If the process dies
before that, its agent removes them; the repair removes records that no agent has removed.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import ref

import msgspec
from msgspec.structs import replace

from fray import sync
from fray.cluster.actor_metadata import ActorId, host_identity
from fray.cluster.api import Cluster
from fray.cluster.current import storage_cluster
from fray.cluster.current_job import CurrentJob, current_job_on
from fray.rpc.context import ActorContext, bound_methods
from fray.rpc.resolver import running_servers
from fray_coordinator.actors import naming
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.protocol.drivers import DRIVER_ATTEMPT
from fray_layouts.codec import plain_text
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import EndpointKey
from fray_layouts.records import EndpointRecord
from fray_layouts.spec_parsing import check_name
from fray_rpc import Journal, RpcServer
from fray_rpc.wire.http_connection import host_and_port
from fray_runtime.current_task import note_endpoint, on_stop, task_environ
from fray_runtime.directories import host_dir, private_dir, user_dir
from fray_runtime.network import NetworkSettings
from fray_runtime.variables import read_variable

log = logging.getLogger("fray")

_MAX_DIR_LENGTH = 80
"""Bytes of the longest path of a directory for sockets. The path of a socket itself may have 107 bytes (unix(7))."""

_MIN_STALE_AGE = 60.0
"""Least age in seconds of a socket that is removed. The server of a newer one may be about to listen."""


def socket_dir(task_dir: str | None) -> Path:
    """Return a directory for Unix sockets that only this user can enter, and create it if it is absent.

    It is in the task's directory, which the agent removes. Outside of tasks, or if that path is too long, it is in the
    user's directory; if TMPDIR makes that one too long as well, it is under `/tmp`.

    Raises:
        UntrustedDirectory: another user could write there.
    """
    if task_dir is not None and _is_short(task_dir):
        return private_dir(Path(task_dir, "rpc"))
    directory = user_dir("rpc")
    return directory if _is_short(directory) else host_dir("rpc")


def _is_short(directory: str | Path) -> bool:
    return len(os.fsencode(directory)) <= _MAX_DIR_LENGTH


def remove_stale_sockets(directory: Path) -> None:
    """Remove the sockets that no server listens on any more."""
    for path in directory.glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):  # another server was faster
            if time.time() - path.stat().st_mtime > _MIN_STALE_AGE and not _listens(path):
                path.unlink()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED  # other errors, as of a full queue, mean a listener


EXIT_TERMINATED = 128 + 15
"""Exit code of a process that SIGTERM ended. Its job counts as stopped or preempted, not as failed."""

_numbers: defaultdict[CurrentJob | None, Iterator[int]] = defaultdict(itertools.count)
"""Numbers the servers that an attempt creates."""


class ActorServer:
    """A server of actors in this process. Usually a job has one.

        server = ActorServer(current_cluster())
        server.register("curriculum", Curriculum(lessons))
        server.serve()

    Calls of one caller run in the order in which they were made, one at a time, unless `register` says otherwise.

    Args:
        cluster: the cluster that the actors are announced in, in its namespace. Anyone who can read its secrets can
            call them.
        host: the address to listen on. In jobs the default comes from the agent's options, through FRAY_BIND_HOST and
            FRAY_ADVERTISE_HOST. Outside of jobs it is loopback if the cluster is on this machine, else this host's
            address.
        port: the port to listen on; 0 for any free one.
    """

    def __init__(self, cluster: Cluster, host: str | None = None, port: int = 0) -> None:
        stored = storage_cluster(cluster)
        network = _network_settings(stored.run(_is_local), host)
        self.keyring = stored.keyring
        self.namespace = stored.namespace
        self._cluster = stored
        self._job = current_job_on(stored.root)
        self._process = os.getpid()
        self._context = ActorContext.of(stored)
        sockets = socket_dir(self._job.task_dir if self._job else None)
        remove_stale_sockets(sockets)
        self._server = RpcServer(
            self.keyring,
            network.bind,
            port,
            unix_dir=sockets,
            tls=self.keyring.encrypted,
            by_reference=stored.in_threads,
        )
        self._advertised = network.advertise
        self._number = next(_numbers[self._job])
        self._records: dict[str, EndpointRecord] = {}
        self._announced: dict[str, str] = {}
        self._lock = threading.Lock()
        self._serving = False
        self._closed = False
        self._stopped = False
        self._ended = threading.Event()

    @property
    def address(self) -> str:
        """The "host:port" at which other processes reach the server."""
        return host_and_port(self._advertised, self._server.address.rpartition(":")[2])

    @property
    def records(self) -> Mapping[str, EndpointRecord]:
        """The endpoint records of the registered actors, by name; they are announced while the server serves."""
        return self._records

    def register(
        self,
        name: str,
        actor: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        max_concurrency: int = 1,
        actor_id: str = "",
        incarnation: int = 0,
        journal: Journal | None = None,
    ) -> ActorId:
        """Register an actor under a name. Actors of other servers may have the same name.

        Args:
            actor: any object. Its methods whose names do not begin with an underscore can be called.
            metadata: JSON values that callers find in `ActorEndpoint.metadata`.
            max_concurrency: number of calls that may run at once, in threads or, for `async def` methods, on an event
                loop. If an object has several names here, they share one limit.
            actor_id: the actor's identity, which stays the same after a restart; made up by default.
            incarnation: incarnation of the name if it was taken for this job alone; 0 if others may share the name.
            journal: makes the actor durable.

        Returns:
            The actor's id.

        Raises:
            InvalidInput: the name is not valid, this server has an actor of that name, the metadata is not JSON, or the
                object has another name here with another `max_concurrency`.
        """
        check_name("name", name)
        _check_metadata(metadata)
        record = self._record(name, actor_id, dict(metadata or {}), incarnation)
        methods = bound_methods(actor, self._context)
        with self._lock:
            if name in self._records:
                raise InvalidInput("name", name, "this server has an actor of that name; unregister it first")
            self._server.add(name, actor, max_concurrency=max_concurrency, methods=methods, journal=journal)
            self._records[name] = record
            serving = self._serving
        if serving:
            self._publish([record])
        return ActorId(record.actor_id)

    def unregister(self, name: str) -> None:
        """Withdraw an actor, so that lookups do not find it any more. Running calls go on.

        Calls that wait for their turn fail here; their callers make them again to another actor of the name, if any.

        Raises:
            InvalidInput: no actor of this server has the name.
        """
        with self._lock:
            record = self._records.pop(name, None)
            self._announced.pop(name, None)
        if record is None:
            raise InvalidInput("name", name, f"the actors here are {', '.join(self._records) or 'none'}")
        self._cluster.run(lambda core: naming.withdraw(core, record))
        self._server.remove(name)

    def serve(self) -> None:
        """Serve until another thread calls `shutdown`, or the job is asked to end.

        Raises:
            SystemExit: the job was asked to end; running calls have been answered.
        """
        if self._job is not None:
            on_stop(self._stop)
        try:
            self.serve_background()
            self._ended.wait()
        finally:
            self.shutdown()
        if self._stopped:
            raise SystemExit(EXIT_TERMINATED)

    def serve_background(self) -> None:
        """Announce the actors and serve them in threads of this process; returns at once.

        It ends with `shutdown`, or when the main thread ends.
        """
        with self._lock:
            if self._serving:
                return
            self._serving = True
            records = list(self._records.values())
        self._server.start()
        running_servers.add(self)
        this = ref(self)
        sync.at_exit(lambda: server.shutdown() if (server := this()) is not None else None)
        self._publish(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self, grace_period: float = 5.0) -> None:
        """Withdraw the records, let running calls end, send their replies and close. A second call does nothing.

        Args:
            grace_period: seconds for all of that together.
        """
        if os.getpid() != self._process:
            return  # a forked child does not serve
        with self._lock:
            serving, self._serving = self._serving, False
            closed, self._closed = self._closed, True
            self._ended.set()
        if closed:
            return
        running_servers.discard(self)
        deadline = time.monotonic() + grace_period
        try:
            if serving:
                self._cluster.run(partial(_withdraw, list(self._records.values()), max(grace_period, 1.0)))
        except (StoreError, TimeoutError):
            log.warning("the actor server %s could not withdraw its records; the repair removes them", self.address)
        finally:
            self._server.close(max(deadline - time.monotonic(), 0.0))

    def _stop(self) -> None:
        self._stopped = True
        self._ended.set()

    def _record(self, name: str, actor_id: str, metadata: dict[str, Any], incarnation: int) -> EndpointRecord:
        return EndpointRecord(
            namespace=self.namespace,
            name=name,
            actor_id=actor_id or self._own_id(),
            job=self._job.job_id if self._job else "",
            attempt=self._job.attempt if self._job else 0,
            incarnation=incarnation,
            nonce=self._server.identity,
            address=self.address,
            unix=self._server.unix_path,
            host=host_identity(),
            fingerprint=self._server.fingerprint,
            metadata=metadata,
        )

    def _own_id(self) -> str:
        """An actor id that is the same in all attempts of a job, so that a later record replaces an earlier one."""
        if self._job is None:
            return secrets.token_hex(8)
        return f"{self._job.job_id}-{self._number}" if self._number else self._job.job_id

    def _publish(self, records: list[EndpointRecord]) -> None:
        if self._job is None:
            self._cluster.host(self)
            return
        for record in records:
            note_endpoint(self._job.task_dir, EndpointKey(record.namespace, record.name, record.actor_id).key())
        self._cluster.run(partial(_publish, records))

    async def announce(self, job: str) -> None:
        """Publish the records under `job`, which stands for this program. Called in the background loop."""
        with self._lock:
            todo = [name for name in self._records if self._serving and self._announced.get(name) != job]
            for name in todo:
                self._records[name] = replace(self._records[name], job=job, attempt=DRIVER_ATTEMPT)
            records = [self._records[name] for name in todo]
        await self._cluster.run_in_loop(partial(_publish, records))
        self._announced.update(dict.fromkeys(todo, job))

    async def withdraw(self) -> None:
        """Withdraw the announced records. Called in the background loop."""
        with self._lock:
            records = [self._records[name] for name in self._announced]
            self._announced.clear()
        await self._cluster.run_in_loop(
            lambda core: map_concurrently(records, lambda record: naming.withdraw(core, record))
        )


async def _publish(records: list[EndpointRecord], core: Core) -> None:
    async def announce() -> None:
        await map_concurrently(records, lambda record: naming.publish(core, record, singleton=record.incarnation > 0))

    await asyncio.gather(announce(), _ensure_rpc_key(core))


async def _ensure_rpc_key(core: Core) -> None:
    """Create the RPC key if there is none, because a caller in another language may have no right to write it."""
    try:
        await rpc_keys(core)
    except (StoreError, BadRecord) as error:  # not fatal: it may exist, or be readable, before the first call
        log.warning("actors cannot be called now, because the cluster's RPC key cannot be read: %s", error)


async def _withdraw(records: list[EndpointRecord], patience: float, core: Core) -> None:
    async with asyncio.timeout(patience):
        await map_concurrently(records, lambda record: naming.withdraw(core, record))


async def _is_local(core: Core) -> bool:
    return core.store.local


def _network_settings(local: bool, host: str | None) -> NetworkSettings:
    environ = task_environ()
    configured = read_variable("FRAY_BIND_HOST", environ) or ""
    bind = configured if host is None else host
    advertise = (read_variable("FRAY_ADVERTISE_HOST", environ) or "") if bind == configured else ""
    return NetworkSettings(bind=bind, advertise=advertise).resolved(local)


def _check_metadata(metadata: Mapping[str, Any] | None) -> None:
    try:
        msgspec.json.encode(metadata, enc_hook=plain_text)
    except TypeError as error:
        raise InvalidInput("metadata", metadata, f"give JSON values ({error})") from None
