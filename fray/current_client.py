"""The current client of a thread or coroutine."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from fray.client.api import Client
from fray.client.storage_client import StorageClient
from fray.cluster.api import Cluster
from fray.cluster.current import environment_cluster, environment_root, open_cluster, storage_cluster
from fray.cluster.iris.connection import is_iris
from fray.cluster.storage import StorageCluster
from fray.local_backend import client_of

__all__ = ["current_client", "set_current_client"]

C = TypeVar("C", bound=Client)

_current: ContextVar[Client | None] = ContextVar("fray_client", default=None)
_lock = threading.Lock()
_default: StorageClient | None = None


def current_client() -> Client:
    """The client to submit jobs and create actors with, for this thread or coroutine.

    It is, in this order: the client of the innermost `set_current_client` block; the client of the cluster that
    FRAY_CLUSTER_SPEC names, as it does in a job, in an actor (its serving threads too) and in their subprocesses; a
    `FrayIrisClient` in a task of Iris; a `RayClient` where this process is connected to Ray, or is part of a job that
    was submitted to Ray; a `LocalClient` that the whole process shares, on the private cluster that
    `current_cluster()` is: what one of the two makes the other sees. Subprocesses of a `LocalClient`'s threads do not
    inherit its cluster.

    Raises:
        InvalidInput: FRAY_CLUSTER_SPEC names nothing that can be opened.
    """
    chosen = _current.get()
    if chosen is not None:
        return chosen
    root = environment_root()
    if root is None:
        return _local()
    cluster = environment_cluster()
    if isinstance(cluster, StorageCluster):
        return client_of(cluster)
    return _client_on_iris(cluster) if is_iris(root) else _client_on_ray(cluster)


@contextmanager
def set_current_client(client: C) -> Iterator[C]:
    """Make `client` the current one within a `with` block, for this thread or coroutine; the block gets the client.

        with set_current_client(StorageClient("gs://bucket/fray")) as client:
            main()

    Threads that are started within the block do not inherit it. The client is not shut down at the end.
    """
    token = _current.set(client)
    try:
        yield client
    finally:
        _current.reset(token)


def _client_on_iris(cluster: Cluster) -> Client:
    from fray.iris_backend.client import FrayIrisClient  # what few processes need

    return FrayIrisClient(cluster)


def _client_on_ray(cluster: Cluster) -> Client:
    from fray.ray_backend.client import RayClient  # what few processes need

    return RayClient(cluster)


def _local() -> StorageClient:
    global _default
    with _lock:
        if _default is None:
            _default = client_of(storage_cluster(open_cluster("local")).threads)
        return _default


class _CallableModule(ModuleType):
    """This module, which can be called as its function can.

    Importing it makes it the attribute `fray.current_client`, which programs call.
    """

    def __call__(self) -> Client:
        return current_client()

    def __reduce__(self) -> tuple[Any, ...]:
        """As what a function of `__main__` uses, it travels with the function."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _CallableModule
