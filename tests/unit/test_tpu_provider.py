"""The provider of TPU slices over the real client library, against an API of Cloud TPU that is served here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from google.cloud import tpu_v2
from google.rpc import code_pb2
from msgspec.structs import replace

from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers.tpu import EMULATOR_VARIABLE, TpuProvider, open_tpu
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.protocol.scaling import planning
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import AgentPoolRecord, ProvisioningSpec, TpuSettings
from tests.support.fake_google import GoogleFaults
from tests.support.fake_tpu import FakeTpu
from tests.support.provider_worlds import core_of

EAST, WEST = "us-east5-a", "europe-west4-b"
SPEC = ProvisioningSpec(
    provider="tpu",
    machine_type="v5litepod-16",
    zones=[EAST, WEST],
    spot=True,
    tpu=TpuSettings(project="lab", image="lab/fray"),
)
PREFIX = f"projects/lab/locations/{EAST}"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeTpu, str]]:
    fake = FakeTpu()
    with fake.serve() as address:
        yield fake, address


@pytest.fixture
def fake(server: tuple[FakeTpu, str], monkeypatch: pytest.MonkeyPatch) -> FakeTpu:
    found, address = server
    monkeypatch.setenv(EMULATOR_VARIABLE, address)
    clean = FakeTpu()
    for name in ("capacity", "quota", "slow", "requests", "nodes", "running", "unreachable"):
        setattr(found, name, getattr(clean, name))
    vars(found.faults).update(vars(GoogleFaults()))
    return found


@pytest_asyncio.fixture
async def provider(fake: FakeTpu) -> AsyncIterator[TpuProvider]:
    opened = await open_tpu("cluster1", "tpus", SPEC)
    yield opened
    await opened.close()


def request(*names: str, zone: str = EAST, pool: str = "tpus", spec: ProvisioningSpec = SPEC) -> MachineRequest:
    return MachineRequest(
        pool=pool, names=names, zone=zone, spec=spec, root="gs://b/c", hosts=4, labels={"team": "vision"}
    )


async def states(provider: TpuProvider) -> dict[str, ListedState]:
    return {machine.name: machine.state for machine in await provider.list()}


async def refused(provider: TpuProvider, asked: MachineRequest) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await provider.create(asked)
    return caught.value


def only(fake: FakeTpu) -> tpu_v2.QueuedResource:
    [made] = fake.requests.values()
    return made


async def test_a_machine_is_a_node_of_a_queued_resource(provider: TpuProvider, fake: FakeTpu) -> None:
    operation = await provider.create(request("m1"))
    [spec] = only(fake).tpu.node_spec
    assert operation == only(fake).name
    assert spec.node.accelerator_type == "v5litepod-16"
    assert spec.node.runtime_version == "v2-alpha-tpuv5-lite"
    assert spec.node.scheduling_config.spot
    assert "spot" in only(fake)
    assert spec.node.metadata["fray-machine"] == "m1"
    assert spec.node.metadata["fray-root"] == "gs://b/c"
    assert "fray-package" not in spec.node.metadata, "nothing is installed by a name"
    assert spec.node.metadata["fray-labels"] == "team=vision"
    assert spec.node.metadata["startup-script"].startswith("#!/bin/bash")
    [listed] = await provider.list()
    assert listed == ListedMachine(
        pool="tpus", name="m1", zone=EAST, state=ListedState.READY, batch="m1", operation=operation
    )


async def test_a_gang_is_one_request_and_its_slices_are_removed_one_by_one(
    provider: TpuProvider, fake: FakeTpu
) -> None:
    await provider.create(request("m1", "m2"))
    assert only(fake).tpu.node_spec[0].multislice_params.node_count == 2
    assert only(fake).tpu.node_spec[0].node.metadata["fray-machines"] == "m1,m2"
    assert [machine.batch for machine in await provider.list()] == ["m1", "m1"]
    await provider.delete("m1", EAST, "m1")
    assert await states(provider) == {"m2": ListedState.READY}
    await provider.delete("m2", EAST, "m1")
    assert (fake.requests, fake.nodes) == ({}, {})


async def test_a_request_whose_nodes_are_all_gone_is_listed_until_it_is_deleted(
    provider: TpuProvider, fake: FakeTpu
) -> None:
    await provider.create(request("m1", "m2"))
    fake.nodes.clear()  # both were deleted at once: each call saw the other's node
    assert await states(provider) == {"m1": ListedState.LOST, "m2": ListedState.LOST}
    await provider.delete("m2", EAST, "m1")
    assert await states(provider) == {}
    assert fake.requests == {}


async def test_a_repeated_create_finds_the_first_ones_machine(provider: TpuProvider, fake: FakeTpu) -> None:
    fake.faults.lost["CreateQueuedResource"] = 1
    first = await provider.create(request("m1"))
    assert await provider.create(request("m1")) == first
    assert fake.faults.asked["CreateQueuedResource"] == 3
    assert len(fake.nodes) == 1


async def test_deletes_may_be_repeated_and_their_answers_lost(provider: TpuProvider, fake: FakeTpu) -> None:
    await provider.create(request("m1"))
    fake.faults.lost["DeleteQueuedResource"] = 1
    await provider.delete("m1", EAST, "m1")
    await provider.delete("m1", EAST, "m1")
    assert (fake.requests, fake.nodes) == ({}, {})


async def test_machines_that_are_being_deleted_are_left_alone(provider: TpuProvider, fake: FakeTpu) -> None:
    await provider.create(request("m1"))
    fake.slow = True
    await provider.delete("m1", EAST, "m1")
    assert await states(provider) == {"m1": ListedState.ENDING}
    await provider.delete("m1", EAST, "m1")
    assert fake.faults.asked["DeleteQueuedResource"] == 1


async def test_a_request_that_waits_is_coming_and_then_has_its_nodes(provider: TpuProvider, fake: FakeTpu) -> None:
    fake.slow = True
    await provider.create(request("m1", "m2"))
    listed = await provider.list()
    told = {(machine.state, machine.error, machine.billed) for machine in listed}
    assert told == {(ListedState.WAITING, "waits for capacity", False)}
    fake.grant()
    assert await states(provider) == {"m1": ListedState.READY, "m2": ListedState.READY}


async def test_one_that_waited_for_too_long_is_a_stockout(provider: TpuProvider, fake: FakeTpu) -> None:
    fake.capacity[EAST] = 0
    await provider.create(request("m1"))
    fake.expire()
    [lost] = await provider.list()
    assert (lost.state, lost.error_kind) == (ListedState.LOST, "stockout")
    await provider.delete("m1", EAST, "m1")
    await provider.create(request("m2", zone=WEST))
    assert await states(provider) == {"m2": ListedState.READY}


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (code_pb2.RESOURCE_EXHAUSTED, 'There is no more capacity in the zone "us-east5-a"', "stockout"),
        (code_pb2.RESOURCE_EXHAUSTED, "Quota limit 'TPUV6E' has been exceeded. Limit: 0 in region us-east5.", "quota"),
        (code_pb2.INVALID_ARGUMENT, "Accelerator type v5litepod-17 not found", "invalid"),
        (code_pb2.INTERNAL, "an internal error", "unavailable"),
    ],
)
async def test_why_a_request_failed(provider: TpuProvider, fake: FakeTpu, code: int, text: str, kind: str) -> None:
    fake.slow = True
    await provider.create(request("m1"))
    fake.expire(text, code)
    [lost] = await provider.list()
    assert (lost.error, lost.error_kind) == (text, kind)


async def test_a_preempted_slice_is_lost_and_says_so(provider: TpuProvider, fake: FakeTpu) -> None:
    await provider.create(request("m1"))
    [path] = fake.nodes
    fake.preempt(path.rpartition("/")[2])
    [lost] = await provider.list()
    assert (lost.state, lost.error) == (ListedState.LOST, "the node is PREEMPTED")
    await provider.delete("m1", EAST, "m1")
    assert await states(provider) == {}


async def test_a_slice_in_a_zone_that_the_pool_no_longer_names_is_listed(provider: TpuProvider, fake: FakeTpu) -> None:
    await provider.create(request("m1", zone=WEST))
    moved = await open_tpu("cluster1", "tpus", ProvisioningSpec(provider="tpu", zones=[EAST], tpu=SPEC.tpu))
    assert await states(moved) == {"m1": ListedState.READY}
    await moved.close()


async def test_clusters_and_pools_of_one_project_do_not_see_one_another(provider: TpuProvider, fake: FakeTpu) -> None:
    others = [await open_tpu("cluster2", "tpus", SPEC), await open_tpu("cluster1", "more", SPEC)]
    for other, pool in zip(others, ("tpus", "more"), strict=True):
        await other.create(request("m1", pool=pool))
        assert len(await other.list()) == 1
        await other.close()
    assert await provider.list() == []
    await provider.delete("m1", EAST, "m1")
    assert len(fake.requests) == 2


async def test_a_quota_of_zero(provider: TpuProvider, fake: FakeTpu) -> None:
    fake.quota = 0
    error = await refused(provider, request("m1"))
    assert error.kind == "quota"
    assert "Limit: 0" in str(error)


async def test_an_unknown_zone_is_named_with_the_known_ones(provider: TpuProvider, fake: FakeTpu) -> None:
    error = await refused(provider, request("m1", zone="us-east9-z"))
    assert error.kind == "invalid"
    assert str(error).endswith(f"write one of these zones instead of us-east9-z: {WEST}, {EAST}")
    spec = ProvisioningSpec(provider="tpu", zones=["us-east9-z"], tpu=SPEC.tpu)
    elsewhere = await open_tpu("cluster1", "tpus", spec)
    assert await elsewhere.list() == []
    await elsewhere.close()


async def test_a_zone_that_is_refused_for_once_is_not_empty(provider: TpuProvider, fake: FakeTpu) -> None:
    """Google also says so of zones that exist. Machines there must not count as gone."""
    text = f"Location {EAST} is not found or access is unauthorized."
    fake.faults.refuse("ListQueuedResources", code_pb2.PERMISSION_DENIED, text)
    with pytest.raises(ProviderError):
        await provider.list()


async def test_a_zone_that_does_not_answer_is_not_empty(provider: TpuProvider, fake: FakeTpu) -> None:
    fake.unreachable = (f"projects/lab/locations/{WEST}",)
    with pytest.raises(ProviderError, match=f"does not answer for {WEST}") as caught:
        await provider.list()
    assert caught.value.kind == "unavailable"


async def test_the_role_that_is_missing_is_told(provider: TpuProvider, fake: FakeTpu) -> None:
    text = f"Permission 'tpu.nodes.create' denied on '{PREFIX}' (or it may not exist)."
    fake.faults.refuse("CreateQueuedResource", code_pb2.PERMISSION_DENIED, text, "IAM_PERMISSION_DENIED")
    error = await refused(provider, request("m1"))
    assert error.kind == "denied"
    assert "grant roles/tpu.admin in project lab to" in str(error)
    text = "The user does not have access to service account 'x@lab.iam'"
    fake.faults.refuse(
        "CreateQueuedResource", code_pb2.PERMISSION_DENIED, text, "IAM", permission="iam.serviceAccounts.actAs"
    )
    assert "grant roles/iam.serviceAccountUser in project lab to" in str(await refused(provider, request("m1")))


async def test_an_api_that_is_not_enabled_is_told_with_the_command(provider: TpuProvider, fake: FakeTpu) -> None:
    fake.faults.refuse(
        "CreateQueuedResource",
        code_pb2.PERMISSION_DENIED,
        "Cloud TPU API has not been used in project lab before or it is disabled.",
        "SERVICE_DISABLED",
        service="tpu.googleapis.com",
    )
    error = await refused(provider, request("m1"))
    assert str(error).endswith("run: gcloud services enable tpu.googleapis.com --project=lab")


async def test_stockouts_are_not_tried_again_and_passing_errors_are(provider: TpuProvider, fake: FakeTpu) -> None:
    text = 'There is no more capacity in the zone "us-east5-a"'
    fake.faults.refuse("CreateQueuedResource", code_pb2.RESOURCE_EXHAUSTED, text)
    assert (await refused(provider, request("m1"))).kind == "stockout"
    assert fake.faults.asked["CreateQueuedResource"] == 1
    text = "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute'"
    fake.faults.refuse("CreateQueuedResource", code_pb2.RESOURCE_EXHAUSTED, text, "RATE_LIMIT_EXCEEDED")
    fake.faults.refuse("CreateQueuedResource", code_pb2.UNAVAILABLE, "connection reset")
    await provider.create(request("m1"))
    assert fake.faults.asked["CreateQueuedResource"] == 4


async def test_calls_of_a_run_do_not_grow_with_machines(provider: TpuProvider, fake: FakeTpu) -> None:
    for number in range(5):
        await provider.create(request(f"m{number}"))
    fake.faults.asked.clear()
    assert len(await provider.list()) == 5
    assert fake.faults.asked == {"ListQueuedResources": len(SPEC.zones), "ListNodes": 1}


async def test_a_slice_that_waits_in_one_zone_is_made_in_the_next(
    fake: FakeTpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "WAIT_SECONDS", 0.0)
    fake.capacity[EAST] = 0
    core = await core_of("cluster1")
    spec = replace(SPEC, min=1)
    await core.records.put(PoolKeys.record("tpus"), AgentPoolRecord(provisioning=spec), ABSENT)
    scaler = Scaler(core, "one", ScalingScope(named=frozenset({"tpus"})))
    for _ in range(4):
        found = await scaler.run_once()
    await scaler.close()
    assert [path.split("/")[3] for path in fake.nodes] == [WEST]
    assert [path.split("/")[3] for path in fake.requests] == [WEST]
    assert found["tpus"].zones[EAST].kind == "stockout"
