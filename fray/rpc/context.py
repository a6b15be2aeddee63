"""What an actor's methods are told about where they run, and which methods want to be told.

A method asks for an `ActorContext` by its first parameter (after `self`): it is annotated `ActorContext`, alone or in
a union such as `ActorContext | None`, or has no annotation and is named `ctx`. All others get the caller's arguments
alone.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fray.cluster.current import current_cluster
from fray.cluster.current_job import current_job_on
from fray.cluster.storage import StorageCluster
from fray.rpc.context_variables import with_context_variables
from fray.types import JobId, Namespace
from fray_agents.rpc.server.server import public_methods

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

        mine = current_job_on(cluster.root)
        return cls(cluster, ClusterResolver(cluster), JobId(mine.job_id if mine else ""), cluster.namespace)

    @classmethod
    def from_environment(cls) -> ActorContext:
        """The context that the FRAY_* variables tell."""
        return cls.of(current_cluster())


def bound_methods(target: object, context: ActorContext) -> Callable[[str], Callable[..., Any]]:
    """A function from a method's name to what a caller's arguments are given to; AttributeError for what is none.

    Methods run with the context variables that are current now.
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
    except (TypeError, ValueError):  # no callable, or a builtin without a signature
        return False
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    return first.name == "ctx" if first.annotation is first.empty else _is_context(first.annotation)


def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """With what annotations in text mean, if all of them mean something: names may be there for type checkers alone."""
    try:
        return inspect.signature(method, eval_str=True)
    except Exception:
        return inspect.signature(method)


def _is_context(annotation: object) -> bool:
    """Whether an annotation is `ActorContext` or a union with it; in text the name alone decides."""
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
