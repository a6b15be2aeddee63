"""What a VM of Google Cloud learns from its metadata server about itself and its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fray_agents.host import gce_metadata
from fray_agents.host.gce_metadata import GceHost, MetadataUnavailable, end_of_host, host_of, read_host
from fray_layouts.errors import InvalidInput
from fray_layouts.records import SliceMember
from tests.support.metadata_server import MetadataServer, metadata_server, tpu_vm, vm
from tests.support.waiting import eventually


def test_only_a_vm_of_google_cloud_has_a_metadata_server(tmp_path: Path) -> None:
    assert gce_metadata.metadata_server({}, tmp_path) is None
    assert gce_metadata.metadata_server({"GCE_METADATA_HOST": "10.0.0.1:80"}, tmp_path) == "10.0.0.1:80"
    product = tmp_path / "sys/class/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.write_text("Google Compute Engine\n")
    assert gce_metadata.metadata_server({}, tmp_path) == "metadata.google.internal"
    product.write_text("Standard PC\n")
    assert gce_metadata.metadata_server({}, tmp_path) is None


def test_a_host_of_a_slice_is_told_all_that_its_agent_says() -> None:
    attributes = {"fray_pool": "tpus", "fray_machine": "m1", "fray_labels": "disk=ssd,rack=a=1"}
    with metadata_server(tpu_vm(**attributes)) as server:
        assert read_host(server.host) == GceHost(
            zone="us-east5-a",
            region="us-east5",
            tpu="v5litepod-16",
            slice=SliceMember(id="blue-6502082742571311568", type="v5litepod-16", index=2, hosts=4),
            pool="tpus",
            machine="m1",
            labels={"disk": "ssd", "rack": "a=1"},
        )


def test_a_slice_that_is_made_again_under_its_name_is_another() -> None:
    first, second = host_of(tpu_vm(uid="1")).slice, host_of(tpu_vm(uid="2")).slice
    assert first is not None
    assert second is not None
    assert first.id != second.id


def test_a_vm_without_a_tpu_is_somewhere_and_may_be_preemptible() -> None:
    spot = vm()
    spot["scheduling"]["preemptible"] = "TRUE"
    assert host_of(spot) == GceHost(zone="us-east5-a", region="us-east5", preemptible=True)
    assert not host_of(vm()).preemptible
    assert host_of(tpu_vm(tpu_env="NODE_ID: 'n'\nPREEMPTIBLE: 'true'")).preemptible


def test_each_slice_of_a_gang_is_a_machine() -> None:
    machines = [host_of(tpu_vm(node=f"gang-{number}", fray_machines="m1,m2")).machine for number in range(2)]
    assert machines == ["m1", "m2"]
    with pytest.raises(InvalidInput, match=r"metadata fray-machines: 'm1,m2' .*'gang-2'"):
        host_of(tpu_vm(node="gang-2", fray_machines="m1,m2"))


def test_a_type_that_fray_does_not_know_is_no_slice(caplog: pytest.LogCaptureFixture) -> None:
    host = host_of(vm(accelerator_type="v99-16", agent_worker_number="0"))
    assert (host.tpu, host.slice) == ("v99-16", None)
    assert "'v99-16'" in caplog.text


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"agent_worker_number": "4"}, "agent-worker-number: '4' .*0 to 3"),
        ({"agent_worker_number": "two"}, "agent-worker-number: 'two'"),
        ({"worker_network_endpoints": "a:b:c,a:b:d"}, "worker-network-endpoints: 2 .*4 hosts"),
        ({"fray_pool": "a/b"}, "fray-pool: 'a/b'"),
        ({"fray_machine": "../m"}, "fray-machine: '../m'"),
        ({"fray_labels": "disk"}, "fray-labels: 'disk' .*name=value"),
        ({"tpu_env": "NODE_ID: 'a node'"}, "NODE_ID: 'a node'"),
    ],
)
def test_impossible_attributes_are_refused(attributes: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        host_of(tpu_vm(**attributes))


@pytest.mark.parametrize("instance", [{"attributes": []}, {"attributes": {}, "scheduling": "?"}])
def test_an_answer_that_is_no_metadata_is_reported(instance: dict[str, Any]) -> None:
    with metadata_server(instance) as server, pytest.raises(MetadataUnavailable, match="something other than metadata"):
        read_host(server.host)


def test_a_server_that_is_out_of_order_or_away_is_told() -> None:
    with metadata_server(vm()) as server:
        server.status = 503
        with pytest.raises(MetadataUnavailable, match="answers 503: out of order"):
            read_host(server.host)
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        read_host(server.host)


async def goes_on(watch: asyncio.Task[str], server: MetadataServer) -> bool:
    """Whether the watch still runs after it has asked the server several times more."""
    before = server.asked
    await eventually(lambda: server.asked > before + 5 or watch.done())
    return not watch.done()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("preempted", "TRUE", "it is preempted"),
        ("maintenanceEvent", "TERMINATE_ON_HOST_MAINTENANCE", "stops this host for maintenance"),
    ],
)
async def test_the_end_of_a_host_is_noticed(monkeypatch: pytest.MonkeyPatch, key: str, value: str, why: str) -> None:
    monkeypatch.setattr(gce_metadata, "NOTICE_INTERVAL", 0.01)
    with metadata_server(vm()) as server:
        server.instance["maintenanceEvent"] = "MIGRATE_ON_HOST_MAINTENANCE"  # it goes on elsewhere
        ended = asyncio.create_task(end_of_host(server.host))
        assert await goes_on(ended, server)
        server.status = 503  # the server is away for a while
        assert await goes_on(ended, server)
        server.instance[key] = value
        server.status = 200
        assert why in await asyncio.wait_for(ended, 60)
