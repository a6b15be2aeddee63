"""Actors that own their name, and how long actors live."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import cloudpickle
import pytest
from msgspec.structs import replace

from fray.actor.named import actor_status, create_named_actor, delete_actor, find_named_actor
from fray.actor.storage_actors import StorageActorHandle
from fray.client import StorageClient
from fray.cluster import Cluster, StorageCluster
from fray.errors import ActorNotFoundError, ActorUnavailableError, InvalidInput, NameTaken
from fray.job_spec import to_spec
from fray.types import ActorConfig, Entrypoint, JobId, JobRequest, JobStatus
from fray_coordinator.jobs.submission import submit
from fray_layouts.spec import ResourceSpec
from tests.support import actors
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


CLUSTER = "threads"


def create(cluster: Cluster, name: str, count: int = 0, **more: Any) -> Any:
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


def test_only_one_of_many_concurrent_creates_of_a_name_succeeds(cluster: StorageCluster) -> None:
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


DETACHED = ActorConfig(detached=True)


def test_a_detached_actor_is_found_by_the_next_script(cluster: StorageCluster) -> None:
    first, second = (StorageClient(StorageCluster(cluster.root)) for _ in range(2))  # each as a script of its own
    assert first.cluster.namespace != second.cluster.namespace
    kept = first.create_actor(actors.Counter, 10, name="kept", actor_config=DETACHED)
    found = second.get_actor("kept")
    assert found == kept
    first.shutdown()
    assert found.add() == 11
    with pytest.raises(NameTaken, match="get_actor"):
        second.create_actor(actors.Counter, name="kept", actor_config=DETACHED)
    with second.get_actor("kept") as again:
        assert again.add() == 12
    with pytest.raises(ActorNotFoundError, match=r"'kept'.*fray actors"):
        second.get_actor("kept")
    assert first.create_actor(actors.Counter, 20, name="kept", actor_config=DETACHED).add() == 21
    delete_actor(second.get_actor("kept"))


def test_names_in_a_namespace_that_somebody_chose_stay_there(cluster: StorageCluster) -> None:
    team, other = (StorageClient(StorageCluster(cluster.root, namespace)) for namespace in ("team", "other"))
    with team.create_actor(actors.Counter, 1, name="ours", actor_config=DETACHED) as ours:
        assert team.get_actor("ours") == ours
        with pytest.raises(ActorNotFoundError):
            other.get_actor("ours")


def find_and_add(name: str) -> tuple[int, str]:
    client = StorageClient(actors.current_cluster())
    return client.get_actor(name).add(), client.cluster.namespace


@pytest.mark.parametrize("more", [{}, {"id": "monday"}])
def test_a_job_whose_namespace_is_its_own_finds_it_too(cluster: StorageCluster, more: dict[str, Any]) -> None:
    with StorageClient(cluster).create_actor(actors.Counter, name="shared", actor_config=DETACHED) as shared:
        spec = to_spec(JobRequest("finder", Entrypoint.from_callable(find_and_add, args=("shared",)), **more))
        (submitted,) = cluster.run(lambda core: submit(core, [replace(spec, resources=ResourceSpec(cpu=0))]))
        assert cluster.result(JobId(submitted.job.id)) == (1, submitted.job.id)
        assert shared.add() == 2


def test_a_name_is_free_again_if_nothing_was_created(cluster: StorageCluster) -> None:
    with pytest.raises(InvalidInput, match="cpu"):
        create(cluster, "unmade", num_cpus=-1)
    with create(cluster, "unmade") as made:  # at once: the name is not held for a job that never comes
        assert made.add() == 1


async def test_an_actor_that_an_async_block_makes_ends_with_the_block(cluster: StorageCluster) -> None:
    client = StorageClient(cluster)
    group = await asyncio.to_thread(client.create_actor_group, actors.Counter, name="awaited", count=2)
    async with group:
        assert await group.handles[1].add.remote() == 1
    with pytest.raises(ActorUnavailableError, match="its group"):
        await group.handles[1].add.remote()
    async with await asyncio.to_thread(create, cluster, "awaited-one") as one:
        assert await one.add.remote() == 1
    with pytest.raises(ActorUnavailableError, match="its block"):
        await one.add.remote()
    async with await asyncio.to_thread(client.host_actor, actors.Counter, name="here") as hosted:
        assert await hosted.handle.add.remote() == 1
    with pytest.raises(ActorUnavailableError):
        await hosted.handle.add.remote()


def test_actors_of_a_block_end_with_it(cluster: StorageCluster) -> None:
    with StorageClient(StorageCluster(cluster.root)) as client:
        with client.create_actor_group(actors.Counter, name="in-block", count=2) as group:
            assert [handle.add() for handle in group.handles] == [1, 1]
        wait_until(group.is_done)
        with client.host_actor(actors.Counter, name="hosted") as hosted:
            assert hosted.handle.add() == 1
            with pytest.raises(InvalidInput, match=r"HostedActor\.shutdown"):
                hosted.handle.__enter__()
        with pytest.raises(ActorUnavailableError):
            hosted.handle.add()
        owned = client.create_actor(actors.Counter, name="owned")
        assert owned.add() == 1
    assert isinstance(owned, StorageActorHandle)
    assert cluster.wait(JobId(owned._address.job), timeout=200).status is JobStatus.STOPPED
