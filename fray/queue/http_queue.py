"""Queues behind a server, for consumers that cannot reach the storage, or for a queue in one process's memory.

Calls use the same authenticated connections as actors' calls. The server passes items on as bytes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, overload

from fray import sync
from fray.cluster.api import Cluster
from fray.cluster.current import open_cluster, storage_cluster
from fray.errors import InvalidInput
from fray.queue.api import Queue
from fray.queue.async_queue import T
from fray.queue.engine import Counts, Delivery, EncodedItem, Peeked, QueueEngine
from fray.queue.memory_queue import MemoryQueue
from fray.rpc.future import until_done
from fray_coordinator.per_process import PerLoop
from fray_coordinator.queue.delivery import QueueNotFound, take_or_return
from fray_layouts.queue_keys import QueueKeys
from fray_rpc import Channel, NoSuchActor, RpcServer, Target, client_id, connect

_NOT_SERVED = ("close", "push_now", "take_now", "done_now")
"""Methods of an engine that only its own process may call."""
_MAX_CONCURRENCY = 10_000
"""Calls of one queue that run at once. Nearly all of them wait for an item, so there may be one per client."""


class HttpQueue(Queue[T]):
    """A client's queue on an `HttpQueueServer`. It pickles as its address.

        HttpQueue("10.0.0.7", 8080, "prompts")
        HttpQueue("http://10.0.0.7:8080", "prompts")

    Args:
        cluster: the server's cluster, whose key authenticates the calls; by default the current one.
        encoding: "pickle", or "json" for consumers in other languages.

    Every method may raise `ConnectionLost`, a ConnectionError, when the server does not answer; then call it again.
    """

    def __init__(
        self,
        host: str,
        port: int | str,
        queue_name: str | None = None,
        *,
        cluster: Cluster | None = None,
        encoding: str = "pickle",
    ) -> None:
        self._address, self._name = _address(host, port, queue_name)
        self._cluster = storage_cluster(cluster) if cluster is not None else None
        super().__init__(PerLoop(self._open), encoding)

    def __reduce__(self) -> tuple[Any, ...]:
        root = (self._cluster or storage_cluster()).root
        return _reopened, (self._address, self._name, root, self._encoding)

    def __repr__(self) -> str:
        return f"HttpQueue('http://{self._address}', {self._name!r})"

    async def _open(self) -> HttpEngine:
        keyring = (self._cluster or storage_cluster()).keyring
        target = Target(self._name, self._address)
        return HttpEngine(self._name, lambda: connect(target, keyring))


class HttpEngine:
    """A `QueueEngine` on a server. channel: returns the connection to it, which is opened if necessary."""

    def __init__(self, name: str, channel: Callable[[], Channel]) -> None:
        self._name = name
        self._channel = channel

    async def push(self, items: Sequence[EncodedItem], batch: int | None) -> None:
        await self._call("push", items, batch)

    def push_now(self, item: EncodedItem) -> Coroutine[Any, Any, None]:
        return self.push([item], 1)

    async def take(self, count: int, timeout: float, wait: float, process: str = "") -> list[Delivery]:
        taking = self._call("take", count, timeout, wait, process or client_id())
        return await take_or_return(taking, self._return)

    def take_now(self, timeout: float) -> None:
        return None

    def done_now(self, lease: str) -> bool:
        return False

    async def done(self, leases: Sequence[str]) -> None:
        await self._call("done", leases)

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        await self._call("release", leases, failed)

    async def extend(self, lease: str, timeout: float) -> float:
        return await self._ask(float, "extend", lease, timeout)

    async def give_up(self, lease: str, reason: str) -> None:
        await self._call("give_up", lease, reason)

    async def counts(self) -> Counts:
        return await self._ask(Counts, "counts")

    async def peek(self, limit: int) -> list[Peeked]:
        return await self._ask(list[Peeked], "peek", limit)

    async def letters(self, limit: int) -> list[Peeked]:
        return await self._ask(list[Peeked], "letters", limit)

    async def redrive(self, limit: int | None) -> int:
        return await self._ask(int, "redrive", limit)

    async def purge(self) -> int:
        return await self._ask(int, "purge")

    async def close(self) -> None:
        """Do nothing: the connection is shared, and the server gives leases back when they run out."""

    async def _return(self, taken: list[Delivery]) -> None:
        await self.release([one.id for one in taken], failed=False)

    async def _ask(self, kind: type[T], method: str, *args: Any) -> T:
        """Call a method that returns a value of type `kind`."""
        value: T = await self._call(method, *args)
        return value

    async def _call(self, method: str, *args: Any) -> Any:
        channel = await asyncio.to_thread(self._channel)
        try:
            call = channel.start(self._name, method, args, {})
            await until_done(call)
            return call.result()
        except NoSuchActor:
            raise QueueNotFound(
                f"the server has no queue {self._name!r}; create it there: new_queue({self._name!r})"
            ) from None


class HttpQueueServer:
    """Serves queues to `HttpQueue`.

        with HttpQueueServer(port=8080) as server:
            prompts = server.new_queue("prompts")

    Args:
        host: the address to listen on.
        port: the port to listen on; 0 for any free one.
        cluster: the cluster whose key authenticates clients; by default the current one. Anyone who can read its
            secrets can use the queues.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, cluster: Cluster | None = None) -> None:
        self._cluster = storage_cluster(cluster)
        keyring = self._cluster.keyring
        self._server = RpcServer(keyring, host, port, tls=keyring.encrypted)
        self._host = host
        self._queues: dict[str, Queue[Any]] = {}
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """The port that the server listens on; chosen by the system if none was given."""
        return int(self._server.address.rpartition(":")[2])

    def get_client_host(self) -> str:
        """The host name for clients: this machine's name if the server listens on all addresses, else its address."""
        return socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host

    @overload
    def new_queue(self, name: str, queue: Queue[T]) -> HttpQueue[T]: ...
    @overload
    def new_queue(self, name: str, queue: None = None) -> HttpQueue[Any]: ...
    def new_queue(self, name: str, queue: Queue[Any] | None = None) -> HttpQueue[Any]:
        """Serve a queue under a name, unless one is served already, and return a client's queue for it.

        Args:
            queue: the queue to serve; by default a new `MemoryQueue`.

        Raises:
            InvalidInput: the name is not valid, or another queue is served under it.
        """
        QueueKeys.checked(name)
        with self._lock:
            if name not in self._queues:
                served = self._queues[name] = queue or MemoryQueue()
                self._server.add(name, _ServedEngine(served._engine), max_concurrency=_MAX_CONCURRENCY)
            elif queue is not None and repr(queue) != repr(self._queues[name]):  # the repr has the queue's address
                remedy = f"{name!r} already serves {self._queues[name]!r}; choose another name"
                raise InvalidInput("queue", queue, remedy)
        return HttpQueue(self.get_client_host(), self.port, name, cluster=self._cluster)

    def start(self) -> None:
        """Start to serve in threads of this process, until `close` is called; returns at once. `with` does both.

        Clients are authenticated by the cluster's key. Connections are encrypted if the cluster's settings say so.
        """
        self._server.start()

    def close(self) -> None:
        """Stop serving, and give the items that clients have leased back to their queues.

        From then on clients' calls raise `ConnectionLost`. The items of a `MemoryQueue` stay in it.
        """
        self._server.close()
        for queue in self._queues.values():
            queue.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _ServedEngine:
    """An engine in the form that clients call. Its methods run in this process's background loop."""

    def __init__(self, engine: PerLoop[QueueEngine]) -> None:
        self._engine = engine

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if method.startswith("_") or not hasattr(QueueEngine, method) or method in _NOT_SERVED:
            raise AttributeError(method)

        async def call(*args: Any) -> Any:
            return await sync.awaited(self._forwarded(method, args))

        return call

    async def _forwarded(self, method: str, args: tuple[Any, ...]) -> Any:
        return await getattr(await self._engine.get(), method)(*args)


def _address(host: str, port: int | str, queue_name: str | None) -> tuple[str, str]:
    """Return ("host:port", name) for (host, port, name) or (URL, name)."""
    if queue_name is None:
        host, queue_name = host.removeprefix("http://").rstrip("/"), str(port)
        host, _, port = host.rpartition(":")
    QueueKeys.checked(queue_name)
    if not host or "/" in host or not str(port).isdigit():
        raise InvalidInput("host", f"{host}:{port}", 'give a host and a port, or "http://host:port"; there is no https')
    return f"{host}:{port}", queue_name


def _reopened(address: str, name: str, root: str, encoding: str) -> HttpQueue[Any]:
    host, _, port = address.rpartition(":")
    return HttpQueue(host, int(port), name, cluster=open_cluster(root), encoding=encoding)
