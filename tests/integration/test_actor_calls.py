"""Actors from the caller's side, on the threads of a private cluster and through storage."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import cloudpickle
import pytest

from fray.actor import ActorConfig, ActorUnavailableError
from fray.client import Client, StorageClient
from fray.cluster import LocalCluster
from fray.types import Entrypoint, JobRequest, JobStatus
from tests.behaviour.actors import *  # noqa: F403
from tests.behaviour.actors import create, create_group
from tests.support import actors
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", params=["threads", pytest.param("storage", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with actors.cluster_of_kind(request.param, tmp_path_factory.mktemp("cluster")) as opened:
        yield StorageClient(opened)


def in_threads(client: Client) -> bool:
    return isinstance(client.cluster, LocalCluster) and not client.cluster.use_processes


def test_the_current_cluster_of_an_actor_is_its_own(client: Client) -> None:
    here = (client.cluster.root, client.cluster.namespace)
    alone = create(client, actors.Self)
    assert alone.cluster() == here
    if not in_threads(client):
        assert tuple(alone.cluster_in_a_process()) == here


def test_an_actor_fails_with_the_error_it_names(client: Client) -> None:
    group = create_group(client, actors.Self, name="failing")
    (handle,) = group.wait_ready()
    handle.fail()
    wait_until(group.is_done)
    with pytest.raises(ActorUnavailableError, match="it is not here") as caught:
        handle.here()
    assert isinstance(caught.value.__cause__, LookupError)
    assert group.statuses() == [JobStatus.FAILED]


def test_the_error_of_an_init_is_the_cause_and_its_job_is_named(client: Client) -> None:
    group = create_group(client, actors.Broken, name="without-model")
    with pytest.raises(ActorUnavailableError) as caught:
        group.handles[0].anything()
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(ActorUnavailableError, match=group._job_id):
        group.wait_ready()
    assert group._job_id == group.jobs[0].job_id


def test_an_actor_in_this_process_is_reached_like_any_other(client: Client) -> None:
    config = ActorConfig(max_concurrency=2)
    with client.host_actor(actors.Counter, 7, name="hosted", actor_config=config) as hosted:
        assert (hosted.handle.pid(), hosted.handle.add()) == (os.getpid(), 8)
        call = Entrypoint.from_callable(lambda handle: handle.add(2), (hosted.handle,))
        job = client.submit(JobRequest("asker", call, resources=actors.SMALL))
        assert client.cluster.result(job.job_id, timeout=200) == 10


def test_values_that_cannot_be_pickled_are_refused_before_anything_is_created(client: Client) -> None:
    if not in_threads(client):
        with pytest.raises(ValueError, match="cannot be pickled"):
            create(client, actors.Counter, os.scandir())


def test_a_private_cluster_runs_actors_in_processes_of_their_own() -> None:
    with LocalCluster() as cluster:
        group = actors.create_group(cluster, actors.Self, name="processes", count=2)
        pids = {handle.pid() for handle in group.wait_ready()}
        assert len(pids | {os.getpid()}) == 3
        assert tuple(group.handles[0].cluster_in_a_process()) == (cluster.root, cluster.namespace)
