"""The provider of Cloud Run over the real client library, against an API of Cloud Run that is served here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import msgspec
import pytest
import pytest_asyncio
from google.rpc import code_pb2

from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers.cloud_run import EMULATOR_VARIABLE, CloudRunProvider, open_cloud_run
from fray_coordinator.protocol.scaling.view import ListedState
from fray_layouts.records import CloudRunSettings, ProvisioningSpec, Resources
from tests.support.fake_cloud_run import FakeCloudRun
from tests.support.fake_google import GoogleFaults

REGION = "us-central1"
SPEC = ProvisioningSpec(
    provider="cloud_run",
    zones=[REGION],
    idle_seconds=90,
    capacity=Resources(cpu=2000, memory=4 << 30),
    cloud_run=CloudRunSettings(image="gcr.io/lab/fray", project="lab"),
)
REQUEST = MachineRequest(pool="web", names=("m1",), zone=REGION, spec=SPEC, root="gs://b/c", labels={"team": "vision"})


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeCloudRun, str]]:
    fake = FakeCloudRun()
    with fake.serve() as address:
        yield fake, address


@pytest.fixture
def fake(server: tuple[FakeCloudRun, str], monkeypatch: pytest.MonkeyPatch) -> FakeCloudRun:
    found, address = server
    monkeypatch.setenv(EMULATOR_VARIABLE, address)
    for made in (found.jobs, found.executions, found.worker_pools, found.running):
        made.clear()
    vars(found.faults).update(vars(GoogleFaults()))
    return found


@pytest_asyncio.fixture
async def provider(fake: FakeCloudRun) -> AsyncIterator[CloudRunProvider]:
    opened = await open_cloud_run("cluster1", "web", SPEC)
    yield opened
    await opened.close()


async def states(provider: CloudRunProvider) -> dict[str, ListedState]:
    return {machine.name: machine.state for machine in await provider.list()}


async def test_a_machine_is_an_execution_with_its_name_and_the_end_when_idle(
    provider: CloudRunProvider, fake: FakeCloudRun
) -> None:
    assert await provider.list() == []
    assert (await provider.create(REQUEST)).startswith("operations/run-")
    [job], [execution] = fake.jobs.values(), fake.executions.values()
    [container] = execution.template.containers
    assert " ".join(container.args) == (
        "agent --root gs://b/c --pool web --no-inbound --region us-central1 --label team=vision --machine m1 "
        "--idle-exit 90"
    )
    assert dict(container.resources.limits) == {"cpu": "2", "memory": "4096Mi"}
    assert (container.image, [*container.command]) == ("gcr.io/lab/fray", ["fray"])
    assert job.template.template.max_retries == 0
    assert await states(provider) == {"m1": ListedState.READY}


async def test_hosts_of_a_machine_are_tasks_of_its_execution(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    await provider.create(replace(REQUEST, hosts=3))
    assert [made.task_count for made in fake.executions.values()] == [3]


async def test_a_repeated_create_makes_nothing_and_a_lost_answer_is_found_by_the_list(
    provider: CloudRunProvider, fake: FakeCloudRun
) -> None:
    fake.faults.lost["RunJob"] = 1
    with pytest.raises(ProviderError) as caught:
        await provider.create(REQUEST)
    assert caught.value.kind == "unavailable"
    assert await states(provider) == {"m1": ListedState.READY}
    await provider.create(REQUEST)
    assert fake.faults.asked["RunJob"] == 1
    assert fake.faults.asked["UpdateJob"] == 1


async def test_a_machine_that_was_made_twice_is_listed_under_another_name_as_a_copy(
    provider: CloudRunProvider, fake: FakeCloudRun
) -> None:
    await provider.create(REQUEST)
    hidden = dict(fake.executions)
    fake.executions.clear()  # as another scaler that asked at the same time saw it
    await provider.create(REQUEST)
    fake.executions.update(hidden)
    [other] = [machine for machine in await provider.list() if machine.name != "m1"]
    assert other.copy_of == "m1"
    await provider.delete(other.name, REGION)
    assert await states(provider) == {"m1": ListedState.READY}
    assert [made.cancelled_count for made in hidden.values()] == [0]


async def test_machines_end_by_themselves_fail_or_are_deleted(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    await provider.create(replace(REQUEST, names=("m1", "m2", "m3")))
    idle, broken, _ = fake.executions
    fake.finish(idle)
    fake.finish(broken, failed="The container exited with an error.")
    lost, _ = await provider.list()
    assert (lost.name, lost.state, lost.error) == ("m2", ListedState.LOST, "The container exited with an error.")
    for name in ("m1", "m2", "m3", "m3"):
        await provider.delete(name, REGION)
    assert await states(provider) == {}


async def test_the_first_machines_stay_as_worker_pools(fake: FakeCloudRun) -> None:
    spec = msgspec.structs.replace(SPEC, min=1)
    provider = await open_cloud_run("cluster1", "web", spec)
    fake.faults.lost["CreateWorkerPool"] = 1
    await provider.create(replace(REQUEST, names=("m1", "m2"), spec=spec))
    [floor] = fake.worker_pools.values()
    assert [*floor.template.containers[0].args][-2:] == ["--machine", "m1"]
    assert floor.scaling.manual_instance_count == 1
    assert len(fake.executions) == 1
    assert await states(provider) == {"m1": ListedState.READY, "m2": ListedState.READY}
    await provider.delete("m1", REGION)
    assert await states(provider) == {"m2": ListedState.READY}
    await provider.close()


async def test_all_of_a_request_are_made_or_none(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    made = []

    def refuse_the_second(arguments: list[str]) -> object:
        made.append(arguments)
        text = "Quota exceeded for total allowable CPU per project per region."
        fake.faults.refuse("RunJob", code_pb2.RESOURCE_EXHAUSTED, text)
        return lambda: None

    fake.boot = refuse_the_second  # type: ignore[assignment]
    try:
        with pytest.raises(ProviderError) as caught:
            await provider.create(replace(REQUEST, names=("m1", "m2")))
    finally:
        fake.boot = FakeCloudRun().boot
    assert caught.value.kind == "quota"
    assert len(made) == 1
    assert await states(provider) == {}


async def test_a_new_image_is_written_to_the_job(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    await provider.create(REQUEST)
    newer = msgspec.structs.replace(SPEC, cloud_run=CloudRunSettings(image="gcr.io/lab/fray:2", project="lab"))
    await provider.create(replace(REQUEST, names=("m2",), spec=newer))
    images = [made.template.containers[0].image for made in fake.executions.values()]
    assert images == ["gcr.io/lab/fray", "gcr.io/lab/fray:2"]


async def test_pools_and_clusters_do_not_see_one_another(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    spec = msgspec.structs.replace(SPEC, min=1)
    other = await open_cloud_run("cluster2", "web", spec)
    await other.create(replace(REQUEST, names=("m1", "m2"), spec=spec))
    assert await provider.list() == []
    await provider.delete("m1", REGION)
    assert len(await other.list()) == 2
    await other.close()


async def test_the_role_that_is_missing_is_told(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    text = "Permission 'run.jobs.runWithOverrides' denied on resource 'projects/lab' (or it may not exist)."
    fake.faults.refuse("RunJob", code_pb2.PERMISSION_DENIED, text)
    with pytest.raises(ProviderError, match=r"grant roles/run\.developer in project lab to") as caught:
        await provider.create(REQUEST)
    assert caught.value.kind == "denied"


async def test_a_region_that_does_not_exist_is_invalid(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    text = "Permission denied on 'locations/us-nowhere1' (or it may not exist)."
    fake.faults.refuse("ListExecutions", code_pb2.PERMISSION_DENIED, text)
    with pytest.raises(ProviderError, match="us-nowhere1") as caught:
        await provider.list()
    assert caught.value.kind == "invalid"


async def test_a_pool_without_an_image_is_invalid(provider: CloudRunProvider, fake: FakeCloudRun) -> None:
    with pytest.raises(ProviderError, match=r"cloud_run\.image") as caught:
        await provider.create(replace(REQUEST, spec=ProvisioningSpec(provider="cloud_run", zones=[REGION])))
    assert caught.value.kind == "invalid"
