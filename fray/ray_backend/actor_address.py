"""The address of an actor on Ray: the name under which Ray finds it."""

from __future__ import annotations

from dataclasses import dataclass

from fray.rpc.calling import RetryPolicy
from fray_layouts.spec_checks import check_name


@dataclass(frozen=True)
class RayActorAddress:
    """The address of one creation of an actor.

    Attributes:
        root: the Ray that it is on.
        ray_name: in Ray's namespace for Fray; of an actor that others find by its name always the same one.
        name: the name that it was created under.
        policy: which of its calls are made again.
        detached: it outlives whoever creates it.
    """

    root: str
    ray_name: str
    name: str
    policy: RetryPolicy
    detached: bool = False

    def __str__(self) -> str:
        return f"actor {self.name!r} ({self.ray_name})"


def exclusive_name(namespace: str, name: str) -> str:
    """Ray's name for the only actor of that name in a namespace. Raises InvalidInput: no actor can have the name."""
    check_name("name", name)
    return f"{namespace}/{name}"
