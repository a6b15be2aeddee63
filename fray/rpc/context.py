"""What an actor's methods are told about where they run, and which methods want to be told.

A method asks for an `ActorContext` by its first parameter (after `self`): it is annotated `ActorContext`, or has no
annotation and is named `ctx`. All others get the caller's arguments alone.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fray.cluster import StorageCluster, current_cluster
from fray.cluster.launch import launcher
from fray.rpc.within import within
from fray.types import JobId, Namespace
from fray_agents.rpc.server import public_methods

if TYPE_CHECKING:
    from fray.rpc.resolver import Resolver


@dataclass(frozen=True)
class ActorContext:
    """Where an actor runs, so that it can call other actors and launch jobs.

    Attributes:
        resolver: finds the actors of `namespace`.
        job_id: the job that hosts the actor; "" outside of jobs.
    """

    cluster: StorageCluster
    resolver: Resolver
    job_id: JobId
    namespace: Namespace

    @classmethod
    def of(cls, cluster: StorageCluster) -> ActorContext:
        """The context of this code on `cluster`."""
        from fray.rpc.resolver import ClusterResolver

        mine = launcher(cluster.root)
        return cls(cluster, ClusterResolver(cluster), JobId(mine.job_id if mine else ""), cluster.namespace)

    @classmethod
    def from_environment(cls) -> ActorContext:
        """The context that the FRAY_* variables tell."""
        return cls.of(current_cluster())


def bound(target: object, context: ActorContext) -> Callable[[str], Callable[..., Any]]:
    """A function from a method's name to what a caller's arguments are given to; AttributeError for what is none.

    Methods run with the context variables that are current now.
    """
    find, variables = public_methods(target), contextvars.copy_context()

    @functools.cache
    def method(name: str) -> Callable[..., Any]:
        found = find(name)
        inside = within(variables, found)
        return functools.partial(inside, context) if _asks(found) else inside

    return method


def _asks(method: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(method).parameters.values()), None)
    except (TypeError, ValueError):  # no callable, or a builtin without a signature
        return False
    if first is None:
        return False
    annotation = first.annotation
    if annotation is inspect.Parameter.empty:
        return first.name == "ctx"
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2] == "ActorContext"
    return annotation is ActorContext
