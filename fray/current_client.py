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
from fray.cluster.backends import backend_of
from fray.cluster.current import default_cluster, environment_cluster, environment_root, storage_cluster
from fray.cluster.storage import StorageCluster
from fray.local_backend import client_of

__all__ = ["current_client", "set_current_client"]

C = TypeVar("C", bound=Client)

_current: ContextVar[Client | None] = ContextVar("fray_client", default=None)
_lock = threading.Lock()
_default: StorageClient | None = None


def current_client() -> Client:
    """The client of this thread or coroutine, to submit jobs and create actors with.

    It is the first of these that applies:

    - the client of the innermost `set_current_client` block;
    - the client of the cluster that FRAY_CLUSTER_SPEC names. Jobs, actors (also their serving threads) and their
      subprocesses have that variable;
    - a `FrayIrisClient`, in a task of Iris;
    - a `RayClient`, if this process is connected to Ray or belongs to a job that was submitted to Ray;
    - a `LocalClient` that the whole process shares. It uses the private cluster that `current_cluster()` returns, so
      each sees the jobs and actors of the other. Subprocesses of a `LocalClient`'s threads do not inherit its cluster.

    Raises:
        InvalidInput: the value of FRAY_CLUSTER_SPEC cannot be opened.
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
    backend = backend_of(root)
    assert backend is not None, f"{root} opened a {type(cluster).__name__}"
    client: Client = backend.open_client(cluster)
    return client


@contextmanager
def set_current_client(client: C) -> Iterator[C]:
    """Make `client` the current one of this thread or coroutine within a `with` block. The block gets the client.

        with set_current_client(StorageClient("gs://bucket/fray")) as client:
            main()

    Threads that are started within the block do not inherit it. The client is not shut down at the end.
    """
    token = _current.set(client)
    try:
        yield client
    finally:
        _current.reset(token)


def _local() -> StorageClient:
    global _default
    with _lock:
        if _default is None:
            _default = client_of(storage_cluster(default_cluster()).threads)
        return _default


class _CallableModule(ModuleType):
    """The class of this module, which makes it callable like its function.

    Importing the module makes it the attribute `fray.current_client`, which programs call.
    """

    def __call__(self) -> Client:
        return current_client()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as its name, because functions of `__main__` that use it are pickled with it."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _CallableModule
