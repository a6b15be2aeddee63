"""The address of an actor on Iris: the job that serves it, and the name of its endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from fray.rpc.calling import RetryPolicy


@dataclass(frozen=True)
class IrisActorAddress:
    """The address of one actor.

    Attributes:
        root: the controller's root, as the creator of the actor wrote it.
        job: the id of the job that serves the actor.
        name: the actor's name; its endpoint has it too, within the job's namespace.
        policy: which calls are made again if the actor's process died after they may have begun.
        max_concurrency: number of calls that the actor runs at once.
        index: the actor's number in its group; each actor of a group has its own endpoint.
    """

    root: str
    job: str
    name: str
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    max_concurrency: int = 1
    index: int = 0

    @property
    def endpoint(self) -> str:
        return f"{self.name}-{self.index}"

    def __str__(self) -> str:
        return f"actor {self.name!r} ({self.job})"
