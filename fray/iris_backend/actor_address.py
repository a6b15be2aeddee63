"""The address of an actor on Iris: the job that serves it, and the name of its endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from fray.rpc.calling import RetryPolicy


@dataclass(frozen=True)
class IrisActorAddress:
    """The address of one actor.

    Attributes:
        root: of the controller, as it was called where the actor was created.
        job: the id of the job that serves it.
        name: the name that it was created under, which its endpoint has within the job's namespace.
        policy: which of its calls are made again that may have begun in a process that died.
        max_concurrency: calls that it runs at once.
        index: its number in its group; each has an endpoint of its own.
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
