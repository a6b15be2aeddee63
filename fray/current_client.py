"""Which client this code works with."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TypeVar

from fray.client.api import Client
from fray.cluster.current import open_cluster
from fray.local_backend import LocalClient, client_of
from fray_agents.tasks.thread_task import task_environ

__all__ = ["current_client", "set_current_client"]

C = TypeVar("C", bound=Client)

_chosen: ContextVar[Client | None] = ContextVar("fray_client", default=None)
_lock = threading.Lock()
_default: LocalClient | None = None


def current_client() -> Client:
    """The client that was chosen by `set_current_client`, else that of the environment, else a `LocalClient`.

    In a job, in an actor (its serving threads too) and in what they start as subprocesses the environment names the
    cluster that runs them; only subprocesses of a `LocalClient`'s threads do not know it. Elsewhere FRAY_CLUSTER_SPEC
    may name one. The `LocalClient` is one for the whole process.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    spec = task_environ().get("FRAY_CLUSTER_SPEC")
    return client_of(open_cluster(spec)) if spec else _local()


@contextmanager
def set_current_client(client: C) -> Iterator[C]:
    """Make `client` the current one within the block, for this thread or coroutine."""
    token = _chosen.set(client)
    try:
        yield client
    finally:
        _chosen.reset(token)


def _local() -> LocalClient:
    global _default
    with _lock:
        if _default is None:
            _default = LocalClient()
        return _default


class _Callable(ModuleType):
    """`fray.current_client` is this module as soon as anyone has imported it, and a function for whoever calls it."""

    def __call__(self) -> Client:
        return current_client()


sys.modules[__name__].__class__ = _Callable
