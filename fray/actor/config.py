"""How an actor is run: the check of what users ask for, and what callers are told of it in its endpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fray.types import ActorConfig, CheckpointConfig
from fray_layouts.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])


def validated(config: ActorConfig) -> ActorConfig:
    """The same config; raises InvalidInput for what makes no sense."""
    if config.max_concurrency < 1:
        raise InvalidInput("actor_config.max_concurrency", config.max_concurrency, "give at least 1")
    if config.max_restarts is not None and config.max_restarts < 0:
        raise InvalidInput("actor_config.max_restarts", config.max_restarts, "give 0 or more, or None for no limit")
    if config.checkpoint is not None:
        _check_checkpointing(config, config.checkpoint)
    return config


def _check_checkpointing(config: ActorConfig, policy: CheckpointConfig) -> None:
    if policy.calls is None and policy.seconds is None and not policy.replies:
        raise InvalidInput("actor_config.checkpoint", policy, "say after how many calls or seconds, or replies=True")
    for field, value in {"calls": policy.calls, "seconds": policy.seconds}.items():
        if value is not None and value <= 0:
            raise InvalidInput(f"actor_config.checkpoint.{field}", value, "give a number above 0, or leave it out")
    if config.max_concurrency != 1:
        remedy = "a durable actor runs one call at a time, or a checkpoint would cut calls in half"
        raise InvalidInput("actor_config.max_concurrency", config.max_concurrency, remedy)


def idempotent(method: F) -> F:
    """Mark a method that may run twice for one call: it is made again when its actor died under it."""
    method.__fray_idempotent__ = True  # type: ignore[attr-defined]
    return method


def endpoint_metadata(cls: type, config: ActorConfig) -> dict[str, Any]:
    """What the endpoint's metadata says to callers."""
    marked = [name for name, member in inspect.getmembers(cls) if hasattr(member, "__fray_idempotent__")]
    return {
        "retries": config.max_task_retries or 0,
        "durable": config.checkpoint is not None,
        "idempotent": marked,
    }


def may_retry(metadata: Mapping[str, Any], method: str, repeated: int) -> bool:
    """Whether a call is made again that may have begun in a process that died.

    Args:
        metadata: of the actor's endpoint, as `endpoint_metadata` made it.
        repeated: how often this call was made again so before.
    """
    limit = metadata.get("retries", 0)
    return bool(limit < 0 or repeated < limit or method in metadata.get("idempotent", ()))
