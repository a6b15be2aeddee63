"""The address of an actor on Ray: the name under which Ray finds it."""

from __future__ import annotations

from dataclasses import dataclass

from fray.rpc.calling import RetryPolicy
from fray_layouts.spec_checks import check_name


@dataclass(frozen=True)
class RayActorAddress:
    """The address of one actor.

    Attributes:
        root: root of the Ray that it is on.
        ray_name: its name in Ray's namespace for Fray. For an actor that owns its name, it follows from that name.
        name: the name that it was created with.
        policy: which of its calls are made again.
        detached: whether it outlives the program that creates it.
    """

    root: str
    ray_name: str
    name: str
    policy: RetryPolicy
    detached: bool = False

    def __str__(self) -> str:
        return f"actor {self.name!r} ({self.ray_name})"


def exclusive_name(namespace: str, name: str) -> str:
    """Ray's name for the actor that owns a name in a namespace. Raises InvalidInput if the name is not valid."""
    check_name("name", name)
    return f"{namespace}/{name}"
