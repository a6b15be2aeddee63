"""Handles of actors on a cluster in storage."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Self, TypeVar

from fray.actor.address import ActorAddress
from fray.actor.caller import HandleCaller, caller_of
from fray.actor.handle import ActorHandle
from fray.cluster.current import environment_cluster, open_cluster, storage_cluster
from fray.cluster.current_job import current_job
from fray.cluster.storage import StorageCluster
from fray.display import ShownTable
from fray.errors import InvalidInput
from fray.types import JobId, JobStatus

T = TypeVar("T")


class StorageActorHandle(ActorHandle[T]):
    """A handle of an actor that is served by a job of a cluster in storage, or by a program outside of jobs."""

    def __init__(self, cluster: StorageCluster, address: ActorAddress) -> None:
        self._cluster = cluster
        self._address = address
        self._own_caller: HandleCaller | None = None

    def _caller(self) -> HandleCaller:
        if self._own_caller is None or self._own_caller.pid != os.getpid():
            self._own_caller = caller_of(self._cluster, self._address)
        return self._own_caller

    def __enter__(self) -> Self:
        """Return the handle. At the end of the block the actor is asked to end."""
        self._check_own_job()
        return self

    def _shut_down(self, why: str) -> None:
        self._check_own_job()
        self._cluster.terminate(JobId(self._address.job))
        self._end(why)

    def _check_own_job(self) -> None:
        if self._address.attempt:
            raise InvalidInput("actor", self, "the program that hosts it ends it, by HostedActor.shutdown()")

    def _end(self, why: str) -> None:
        """Make later calls from this process fail."""
        self._caller().end(why)

    def _status(self) -> JobStatus:
        return self._cluster.poll(JobId(self._address.job)).status

    def _identity(self) -> ActorAddress:
        return self._address

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._cluster.root, self._address)

    def __repr__(self) -> str:
        return f"ActorHandle({self._address.name!r}, {self._address.actor_id!r})"

    def _shown(self) -> ShownTable:
        job = self._cluster.poll(JobId(self._address.job))._shown()
        return replace(job, title=f"actor {self._address.name} ({self._address.job})")


def _loaded(root: str, address: ActorAddress) -> StorageActorHandle[Any]:
    return StorageActorHandle(cluster_at(root), address)


def cluster_at(root: str) -> StorageCluster:
    """The cluster of a pickled handle. In a job it is the cluster that runs the job, since its root may be written in
    another way where the handle was pickled."""
    return storage_cluster(environment_cluster() if current_job() is not None else open_cluster(root))
