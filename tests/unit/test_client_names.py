"""Jobs by name: who has a name, who may take it, and how many requests a thousand of them cost."""

from __future__ import annotations

import pickle
import uuid
from typing import Any

import pytest

from fray.client import JobAlreadyExists, JobFailed, JobHandle, StorageClient, wait_all
from fray.cluster import StorageCluster
from fray.current_client import current_client, set_current_client
from fray.errors import InvalidInput
from fray.types import ANY_REGION, ActorConfig, Entrypoint, JobRequest, JobStatus, ResourceConfig, create_environment
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import JobIds, JobKeys
from fray_layouts.records import ClusterSettings, JobRecord


def a_request(name: str = "job", **fields: Any) -> JobRequest:
    return JobRequest(name, Entrypoint.from_binary("true"), **fields)


@pytest.fixture
def client() -> StorageClient:
    return StorageClient(StorageCluster(f"memory://{uuid.uuid4()}", namespace="team"))


@pytest.mark.parametrize("length", [1, 118, 119, 128])
def test_a_name_may_be_as_long_as_any(client: StorageClient, length: int) -> None:
    name = "n" * length
    assert client.submit(a_request(name)) == client.submit(a_request(name))
    with pytest.raises(JobAlreadyExists):
        client.submit(a_request(name), adopt_existing=False)
    if length > 2:
        detached = ActorConfig(detached=True)
        actor = client.create_actor(dict, name=name[2:], actor_config=detached)
        assert client.get_actor(name[2:]) == actor


def test_a_running_job_is_adopted_or_reported(client: StorageClient) -> None:
    first = client.submit(a_request())
    assert client.submit(a_request()) == first
    with pytest.raises(JobAlreadyExists, match=first.job_id) as caught:
        client.submit(a_request(), adopt_existing=False)
    assert caught.value.handle == first
    assert pickle.loads(pickle.dumps(caught.value)).job_name == "job"
    assert isinstance(caught.value, RuntimeError)
    assert len(client.cluster.list_jobs()) == 1


def test_a_name_is_free_again_once_its_job_has_ended(client: StorageClient) -> None:
    first = client.submit(a_request())
    first.terminate()
    second = client.submit(a_request(), adopt_existing=False)
    assert (first.status(), second.status()) == (JobStatus.STOPPED, JobStatus.PENDING)
    assert first != second


def test_names_of_other_namespaces_do_not_matter(client: StorageClient) -> None:
    other = StorageClient(StorageCluster(client.cluster.root, namespace="others"))
    assert other.submit(a_request(), adopt_existing=False) != client.submit(a_request(), adopt_existing=False)
    assert client.submit(a_request(namespace="others")) == other.submit(a_request())


def test_a_caller_that_finds_the_name_of_a_dead_submitter_submits_the_same_job(client: StorageClient) -> None:
    promised = JobIds.given("team", "job", "1" * 15)
    client.cluster.run(lambda core: naming.take_name(core, "team", "job", "job", promised))
    with pytest.raises(JobAlreadyExists):
        client.submit(a_request(), adopt_existing=False)
    assert client.submit(a_request()).job_id == promised
    assert [job.job_id for job in client.cluster.list_jobs()] == [promised]


def test_a_wrong_name_is_refused_before_anything_is_written(client: StorageClient) -> None:
    with pytest.raises(InvalidInput, match="name"):
        client.submit(a_request("../elsewhere"))
    assert client.cluster.requests().writes <= 1, "the root's own settings"


def test_an_id_of_the_users_own_is_the_users_own_matter(client: StorageClient) -> None:
    assert client.submit(a_request(id="v1")) == client.submit(a_request(id="v1"), adopt_existing=False)


@pytest.mark.parametrize(("asked", "cores"), [(None, 0), (ResourceConfig(cpu=2), 2), (ResourceConfig(), 1)])
def test_an_actor_reserves_no_core_unless_it_asks_for_one(
    client: StorageClient, asked: ResourceConfig | None, cores: int
) -> None:
    (job,) = client.create_actor_group(list, name="actor", count=1, resources=asked).jobs
    record = record_of(client.cluster.run(lambda core: core.records.read(JobKeys.key(job.job_id), JobRecord)))
    assert record is not None
    assert record.spec.resources.cpu == cores


@pytest.mark.slow
def test_a_thousand_jobs_are_watched_with_a_handful_of_requests_a_second(client: StorageClient) -> None:
    """With the settings of a bucket. Where requests are free, clients look as often as a look allows."""
    client.cluster.run(as_in_a_bucket)
    handles = [client.submit(a_request("one"))]
    handles += [JobHandle(client.cluster, job) for job in client.cluster.launch_many([a_request("many")] * 1000)]
    before = client.cluster.requests()
    with pytest.raises(TimeoutError, match="0 of 1001 jobs done"):
        wait_all(handles, timeout=1.6)
    spent = client.cluster.requests() - before
    assert spent.writes == 0
    assert spent.reads == len(handles), "each job is read once"
    assert 0 < spent.lists <= 3 * 2, "two pages a look"


async def as_in_a_bucket(core: Core) -> None:
    core.store._backend.local = False
    object.__setattr__(core, "settings", ClusterSettings())


def test_one_failure_ends_the_wait_for_all(client: StorageClient) -> None:
    jobs = [client.submit(a_request(f"part-{i}")) for i in range(3)]
    jobs[1].terminate()
    with pytest.raises(JobFailed, match=jobs[1].job_id) as caught:
        wait_all(jobs)
    assert (caught.value.job_id, caught.value.failed_status) == (jobs[1].job_id, JobStatus.STOPPED)
    assert isinstance(caught.value, RuntimeError)
    for job in jobs:
        job.terminate()
    assert wait_all(jobs, raise_on_failure=False) == [JobStatus.STOPPED] * 3
    assert wait_all([]) == []


def test_jobs_of_two_clusters_are_not_waited_for_in_one_call(client: StorageClient) -> None:
    other = StorageClient("memory://other")
    with pytest.raises(InvalidInput, match="each cluster in a call of its own"):
        wait_all([client.submit(a_request()), other.submit(a_request())])


def test_handles_and_clients_pickle(client: StorageClient) -> None:
    job = client.submit(a_request())
    again = pickle.loads(pickle.dumps(job))
    assert (again, again.status()) == (job, JobStatus.PENDING)
    assert pickle.loads(pickle.dumps(client)).submit(a_request()) == job


def test_the_chosen_client_is_current_within_its_block(client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", client.cluster.root)
    monkeypatch.setenv("FRAY_NAMESPACE", "outside")
    found = current_client()
    assert isinstance(found, StorageClient)
    assert (found.cluster.root, found.cluster.namespace) == (client.cluster.root, "outside")
    with set_current_client(client) as chosen:
        assert current_client() is chosen is client
    assert current_client() is not client


def stored(client: StorageClient, job_id: str) -> JobRecord:
    async def read(core: Core) -> JobRecord | None:
        return record_of(await core.records.read(JobKeys.key(job_id), JobRecord))

    found = client.cluster.run(read)
    assert found is not None
    return found


def test_the_requests_of_the_ecosystems_programs_are_accepted(
    client: StorageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    environment = create_environment(env_vars={"TOKENIZERS_PARALLELISM": "true"})
    job = client.submit(a_request(resources=ResourceConfig(regions=[ANY_REGION]), environment=environment))
    spec = stored(client, job.job_id).spec
    assert spec.environment.env_vars == {"HF_DATASETS_TRUST_REMOTE_CODE": "1", "TOKENIZERS_PARALLELISM": "true"}
    assert spec.environment.secret_env_vars == {"HF_TOKEN": "hunter2"}
    assert spec.resources.regions == []
