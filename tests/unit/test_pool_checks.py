"""Problems of a pool that its provider and `fray up` report before its first machine is ordered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from google.rpc import code_pb2
from msgspec.structs import replace

from fray_agents.provisioning.provider_opening import check_pool
from fray_agents.provisioning.providers import cloud_run, google_calls, tpu
from fray_coordinator.core import Core
from fray_layouts.records import CloudRunSettings, CommandSettings, ProvisioningSpec, TpuSettings
from tests.support.fake_cloud_run import FakeCloudRun
from tests.support.fake_tpu import FakeTpu
from tests.support.google_project import FakeProject
from tests.support.provider_worlds import core_of
from tests.support.shell import Shell

ZONE = "us-east5-a"
TPU = ProvisioningSpec(
    provider="tpu", machine_type="v5litepod-16", zones=[ZONE], tpu=TpuSettings(project="lab", image="lab/fray")
)
RUN = ProvisioningSpec(
    provider="cloud_run", zones=["us-central1"], cloud_run=CloudRunSettings(image="lab/fray", project="lab")
)
FILE = f"""
pools: {{train: {{provider: tpu, machine_type: v5litepod-16, zones: [{ZONE}], tpu: {{project: lab, image: lab/fray}}}}}}
"""


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProject]:
    fake = FakeProject(rights={*tpu.PERMISSIONS, *cloud_run.PERMISSIONS})
    with fake.serve() as address:
        monkeypatch.setenv(google_calls.EMULATOR_VARIABLE, address)
        yield fake


@pytest.fixture
def cloud_tpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTpu]:
    fake = FakeTpu()
    with fake.serve() as address:
        monkeypatch.setenv(tpu.EMULATOR_VARIABLE, address)
        yield fake


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloudRun]:
    fake = FakeCloudRun()
    with fake.serve() as address:
        monkeypatch.setenv(cloud_run.EMULATOR_VARIABLE, address)
        yield fake


async def told(core: Core, spec: ProvisioningSpec) -> Sequence[tuple[str, str]]:
    return [(error.kind, str(error)) for error in await check_pool(core, "p", spec)]


async def test_a_pool_that_may_have_its_machines_is_told_nothing(
    cloud_tpu: FakeTpu, run: FakeCloudRun, project: FakeProject
) -> None:
    project.quotas["TPUV5sLitepodPerProjectPerZoneForTPUAPI"] = {ZONE: 16, "us-west1-c": 0}
    core = await core_of("abc")
    assert [await told(core, spec) for spec in (TPU, RUN)] == [[], []]
    project.rights = None  # nobody knows
    assert await told(core, TPU) == []
    assert (cloud_tpu.requests, run.jobs) == ({}, {}), "nothing is made"


async def test_a_zone_that_does_not_exist_and_one_without_the_type(cloud_tpu: FakeTpu) -> None:
    core = await core_of("abc")
    [(kind, text)] = await told(core, replace(TPU, zones=["us-east9-a", ZONE]))
    assert (kind, "write one of these zones instead of us-east9-a: europe-west4-b, us-east5-a" in text) == (
        "invalid",
        True,
    )
    cloud_tpu.types = ("v5litepod-4",)
    assert await told(core, TPU) == [
        ("invalid", f"there is no v5litepod-16 in {ZONE}; name a zone that has it, or one of its types")
    ]


async def test_rights_that_are_missing_name_their_role(
    cloud_tpu: FakeTpu, run: FakeCloudRun, project: FakeProject
) -> None:
    project.rights = {"tpu.nodes.list", *cloud_run.PERMISSIONS} - {"run.jobs.run"}
    core = await core_of("abc")
    assert await told(core, TPU) == [
        (
            "denied",
            "tpu.nodes.create, tpu.nodes.delete are missing: grant roles/tpu.admin in project lab to the account that "
            "Fray runs as here, if machines are to be created with it",
        )
    ]
    [(kind, text)] = await told(core, RUN)
    assert (kind, "run.jobs.run is missing: grant roles/run.developer in project lab" in text) == ("denied", True)


async def test_a_quota_of_zero_says_where_to_ask_for_more(cloud_tpu: FakeTpu, project: FakeProject) -> None:
    project.quotas["TPUV5sLitepodPerProjectPerRegionForTPUAPI"] = {"us-east5": 0}
    [(kind, text)] = await told(await core_of("abc"), TPU)
    assert kind == "quota"
    assert "its quota TPUV5sLitepodPerProjectPerRegionForTPUAPI is 0 there" in text
    assert "https://console.cloud.google.com/iam-admin/quotas?project=lab" in text


async def test_refusals_of_cloud_run_are_reported(run: FakeCloudRun, project: FakeProject) -> None:
    core = await core_of("abc")
    text = "Image 'lab/fray' not found."
    run.faults.refuse("UpdateJob", code_pb2.INVALID_ARGUMENT, text)
    assert await told(core, RUN) == [("invalid", text)]
    text = "Permission 'run.workerpools.list' denied on resource 'projects/lab' (or it may not exist)."
    run.faults.refuse("ListWorkerPools", code_pb2.PERMISSION_DENIED, text)
    [(kind, said)] = await told(core, RUN)
    assert (kind, "grant roles/run.developer in project lab" in said) == ("denied", True)


async def test_programs_that_fail_or_are_not_there_are_told() -> None:
    core = await core_of("abc")

    def commands(listing: list[str], create: str = "true", timeout: float = 200.0) -> ProvisioningSpec:
        settings = CommandSettings(list=listing, create=[create], delete=["true"], timeout=timeout)
        return ProvisioningSpec(provider="command", command=settings)

    assert await told(core, commands(["true"])) == []
    [(kind, text)] = await told(core, commands(["echo", "nonsense"]))
    assert (kind, "printed 'nonsense'" in text) == ("invalid", True)
    [(_, text)] = await told(core, commands(["sleep", "1000"], timeout=0.05))
    assert "did not end within 0.05 s and was killed" in text
    [(_, text)] = await told(core, commands(["sh", "-c", "echo no cluster >&2; exit 77"]))
    assert "failed with exit code 77: no cluster" in text
    [(kind, text)] = await told(core, commands(["true"], "/nowhere/create"))
    assert (kind, "the command that creates machines (/nowhere/create) cannot be started" in text) == ("denied", True)


def test_a_cluster_is_not_given_a_pool_that_can_never_have_a_machine(tmp_path: Path, cloud_tpu: FakeTpu) -> None:
    shell = Shell(tmp_path / "root")
    (tmp_path / "fray.yaml").write_text(FILE.replace(ZONE, "us-east5-z"))
    said = shell("up", code=1).stderr
    assert "pools.train: " in said
    assert "write one of these zones instead of us-east5-z: europe-west4-b, us-east5-a" in said
    assert shell.json("pool", "ls") == []


def test_a_missing_right_for_machines_is_reported_and_the_pool_is_set(
    tmp_path: Path, cloud_tpu: FakeTpu, project: FakeProject
) -> None:
    project.rights = set()
    shell = Shell(tmp_path / "root")
    (tmp_path / "fray.yaml").write_text(FILE)
    assert "pool train: a check from this host says that it gets no machines: tpu.nodes.create" in shell("up").stderr
    assert [pool["pool"] for pool in shell.json("pool", "ls")] == ["train"]


def test_without_credentials_the_way_to_them_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    shell = Shell(tmp_path / "root")
    (tmp_path / "fray.yaml").write_text(FILE)
    said = shell("up").stderr
    assert "no credentials of Google Cloud" in said
    assert "gcloud auth application-default login" in said
