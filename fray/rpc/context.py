"""`ActorContext`: the context of an actor's methods, and how it is passed to methods that ask for it.

A method asks for an `ActorContext` by its first parameter (after `self`). The parameter is annotated `ActorContext`,
alone or in a union such as `ActorContext | None`, or has no annotation and the name `ctx`. All other methods get only
the caller's arguments.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import inspect
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fray.cluster.current import storage_cluster
from fray.cluster.current_job import current_job_on
from fray.cluster.storage import StorageCluster
from fray.rpc.pool import Resolver
from fray.rpc.resolver import ClusterResolver
from fray.types import JobId, Namespace
from fray_rpc.server.server import public_methods


@dataclass(frozen=True)
class ActorContext:
    """The cluster, job and namespace of an actor, so that it can call other actors and launch jobs.

    Attributes:
        resolver: finds the actors of `namespace`.
        job_id: id of the job that hosts the actor; "" outside of jobs.
    """

    cluster: StorageCluster
    resolver: Resolver
    job_id: JobId
    namespace: Namespace

    @classmethod
    def of(cls, cluster: StorageCluster) -> ActorContext:
        """The context of the code's job on `cluster`. Outside of the cluster's jobs it has no `job_id`."""
        mine = current_job_on(cluster.root)
        return cls(cluster, ClusterResolver(cluster), JobId(mine.job_id if mine else ""), cluster.namespace)

    @classmethod
    def from_environment(cls) -> ActorContext:
        """The context of the code's job on the current cluster, read from the FRAY_* variables."""
        return cls.of(storage_cluster())


def bound_methods(target: object, context: ActorContext) -> Callable[[str], Callable[..., Any]]:
    """Make a lookup function for the public methods of `target`. Methods that ask for a context get `context`.

    Methods run with the context variables of this call. The lookup raises AttributeError for other names.
    """
    find, variables = public_methods(target), contextvars.copy_context()

    @functools.cache
    def method(name: str) -> Callable[..., Any]:
        found = find(name)
        inside = with_context_variables(variables, found)
        return functools.partial(inside, context) if _takes_context(found) else inside

    return method


def _takes_context(method: Callable[..., Any]) -> bool:
    try:
        first = next(iter(_signature(method).parameters.values()), None)
    except (TypeError, ValueError):  # not a callable, or a builtin without a signature
        return False
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    return first.name == "ctx" if first.annotation is first.empty else _is_context(first.annotation)


def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """The signature, with string annotations resolved if possible: some names may exist for type checkers only."""
    try:
        return inspect.signature(method, eval_str=True)
    except Exception:
        return inspect.signature(method)


def _is_context(annotation: object) -> bool:
    """Whether an annotation is `ActorContext` or a union with it. In unresolved strings only the name is compared."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            return _names_context(ast.parse(annotation, mode="eval").body)
        except SyntaxError:
            return False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(map(_is_context, typing.get_args(annotation)))
    return annotation is ActorContext


def _names_context(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Constant(str(text)):
            return _is_context(text)
        case ast.Name(name) | ast.Attribute(_, name):
            return name == "ActorContext"
        case ast.BinOp(left, ast.BitOr(), right):
            return _names_context(left) or _names_context(right)
        case ast.Subscript(ast.Name("Optional" | "Union") | ast.Attribute(_, "Optional" | "Union"), inner):
            return any(map(_names_context, inner.elts if isinstance(inner, ast.Tuple) else [inner]))
    return False


def with_context_variables(context: contextvars.Context, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method, so that it runs with the variables of `context`. It may be async, a generator, or both."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def yielding_async(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            _adopt(context)
            async for item in method(*args, **kwargs):
                yield item

        return yielding_async
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            _adopt(context)
            return await method(*args, **kwargs)

        return awaited
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def yielding(*args: Any, **kwargs: Any) -> Iterator[Any]:
            own = context.copy()
            items = method(*args, **kwargs)
            try:
                yield from iter(lambda: own.run(next, items, _END), _END)
            finally:
                own.run(items.close)

        return yielding

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(method, *args, **kwargs)

    return called


_END: Any = object()


def _adopt(context: contextvars.Context) -> None:
    """Copy the values of `context` into the current context, which belongs to a task of an event loop."""
    for variable, value in context.items():
        variable.set(value)
