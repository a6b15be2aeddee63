"""Actors that own their name, and how long actors live."""

from __future__ import annotations

import sys
import threading
from typing import Any

import cloudpickle
import pytest

from fray.actor.named import actor_status, create_named_actor, delete_actor, find_named_actor
from fray.cluster import StorageCluster
from fray.errors import ActorUnavailableError, InvalidInput
from fray.types import Entrypoint, JobRequest, JobStatus
from tests.support import actors
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


CLUSTER = "threads"


def create(cluster: StorageCluster, name: str, count: int = 0, **more: Any) -> Any:
    return create_named_actor(cluster, actors.Counter, (count,), name=name, **more)


def test_a_name_has_one_living_actor(cluster: StorageCluster) -> None:
    first = create(cluster, "one", 10)
    with pytest.raises(ValueError, match=r"the actor one in namespace .* exists already"):
        create(cluster, "one")
    again = create(cluster, "one", 99, get_if_exists=True)
    assert again == first
    assert [first.add(), again.add()] == [11, 12]
    assert find_named_actor(cluster, "one") == first
    assert actor_status(first) is JobStatus.RUNNING


def test_a_deleted_actors_name_is_free(cluster: StorageCluster) -> None:
    first = create(cluster, "two", 10)
    assert first.add() == 11
    delete_actor(first)
    second = create(cluster, "two", 20, get_if_exists=True)
    assert second != first
    assert second.add() == 21
    with pytest.raises(ActorUnavailableError, match="deleted"):
        first.add()
    wait_until(lambda: actor_status(first) is JobStatus.STOPPED)
    assert find_named_actor(cluster, "nobody") is None


def test_of_many_who_create_a_name_at_once_one_does(cluster: StorageCluster) -> None:
    made: list[Any] = []
    threads = [
        threading.Thread(target=lambda number=number: made.append(create(cluster, "race", number, get_if_exists=True)))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


def test_a_lifetime_is_one_of_two(cluster: StorageCluster) -> None:
    with pytest.raises(InvalidInput, match="lifetime"):
        create(cluster, "odd", lifetime="eternal")


def make_two() -> tuple[Any, Any]:
    cluster = actors.current_cluster()
    detached = create(cluster, "detached", lifetime="detached")
    bound = create(cluster, "bound")
    return [(handle.add(), handle) for handle in (detached, bound)]  # type: ignore[return-value]


def test_a_detached_actor_outlives_its_creator_and_others_do_not(cluster: StorageCluster) -> None:
    job = cluster.launch(JobRequest("maker", Entrypoint.from_callable(make_two), resources=actors.SMALL))
    (first, detached), (second, bound) = cluster.result(job, timeout=200)
    assert (first, second) == (1, 1)
    wait_until(lambda: actor_status(bound).finished())
    assert detached.add() == 2
    assert find_named_actor(cluster, "detached") == detached
    assert find_named_actor(cluster, "bound") is None
    delete_actor(detached)


def create_and_die() -> None:
    group = actors.create_group(actors.current_cluster(), actors.Counter, name="orphans", count=2)
    group.wait_ready()
    raise LookupError(" ".join(job.job_id for job in group.jobs))


def test_actors_end_with_a_creator_that_fails(cluster: StorageCluster) -> None:
    info = cluster.wait(
        cluster.launch(JobRequest("maker", Entrypoint.from_callable(create_and_die), resources=actors.SMALL))
    )
    assert info.exit is not None
    for job in info.exit.message.removeprefix("LookupError: ").split():
        assert cluster.wait(job, timeout=200).status is JobStatus.STOPPED
