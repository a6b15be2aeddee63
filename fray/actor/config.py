"""Checks of an actor's configuration, and the retry policy that follows from it."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from fray.rpc.calling import RetryPolicy
from fray.types import ActorConfig, CheckpointConfig
from fray_layouts.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])


def validated(config: ActorConfig) -> ActorConfig:
    """Return the config unchanged. Raises InvalidInput if a field of it has a wrong value."""
    if not isinstance(config, ActorConfig):
        raise InvalidInput("actor_config", config, "give an ActorConfig")
    if not isinstance(config.max_concurrency, int) or config.max_concurrency < 1:
        raise InvalidInput("actor_config.max_concurrency", config.max_concurrency, "give at least 1")
    if config.max_restarts is not None and not (isinstance(config.max_restarts, int) and config.max_restarts >= 0):
        raise InvalidInput("actor_config.max_restarts", config.max_restarts, "give 0 or more, or None for no limit")
    if config.outage not in ("run", "stop"):
        raise InvalidInput("actor_config.outage", config.outage, "give run or stop")
    if config.checkpoint is not None:
        _check_checkpointing(config, config.checkpoint)
    return config


def _check_checkpointing(config: ActorConfig, policy: CheckpointConfig) -> None:
    if policy.calls is None and policy.seconds is None and not policy.replies:
        raise InvalidInput("actor_config.checkpoint", policy, "say after how many calls or seconds, or replies=True")
    for field, value in {"calls": policy.calls, "seconds": policy.seconds}.items():
        if value is not None and not (isinstance(value, (int, float)) and value > 0):
            raise InvalidInput(f"actor_config.checkpoint.{field}", value, "give a number above 0, or leave it out")
    if config.max_concurrency != 1:
        remedy = "a durable actor runs one call at a time, or a checkpoint would cut calls in half"
        raise InvalidInput("actor_config.max_concurrency", config.max_concurrency, remedy)


def idempotent(method: F) -> F:
    """Mark a method that may run twice for one call: if the actor dies during a call, the call is made again.

        @idempotent
        def get(self, key): ...

    Calls of other methods raise CallInterrupted in that case, unless `ActorConfig.max_task_retries` allows retries.
    """
    method.__fray_idempotent__ = True  # type: ignore[attr-defined]
    return method


def retry_policy(cls: type, config: ActorConfig) -> RetryPolicy:
    """The retry policy that the actor announces to its callers in the metadata of its endpoint."""
    marked = [name for name, member in inspect.getmembers(cls) if hasattr(member, "__fray_idempotent__")]
    return RetryPolicy(config.max_task_retries or 0, marked, config.checkpoint is not None)
