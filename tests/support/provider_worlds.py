"""Environments for providers of machines in tests: this host, a folder that commands change, and fakes of clouds."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import yaml
from google.cloud import run_v2

from fray_agents.provisioning.identity import provider_name
from fray_agents.provisioning.providers import cloud_run, local, tpu
from fray_coordinator.clock import SystemClock, system_random
from fray_coordinator.core import Core, core_on
from fray_coordinator.protocol.cluster_identity import identity_of
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.store import Store
from fray_layouts.records import CloudRunSettings, ClusterSettings, CommandSettings, ProvisioningSpec, TpuSettings
from tests.support.cluster_stand_ins import install_kubectl, install_slurm
from tests.support.fake_cloud_run import FakeCloudRun
from tests.support.fake_tpu import FakeTpu

CLUSTER_ID, POOL = "abcdef012345", "workers"

EXAMPLES = Path(__file__).parents[2] / "examples" / "command_machines"

CREATE = 'echo ready >"$1/$FRAY_NAME"'
DELETE = 'rm -f "$1/$FRAY_NAME"'
LIST = """
cd "$1"
for name in *; do [ -f "$name" ] && printf '{"name": "%s", "state": "%s"}\\n' "$name" "$(cat "$name")"; done; true
"""


@dataclass
class ProviderWorld:
    """One kind of provider: the fields of its pools, and how a machine is lost."""

    spec: ProvisioningSpec
    zone: str
    lose: Callable[[str], None]
    """Take a machine of CLUSTER and POOL away, like a preemption."""


def settings_of(cluster_id: str) -> ClusterSettings:
    """The settings of the cluster with this id, which all its participants read."""
    return ClusterSettings(cluster_id=cluster_id, addresses=[f"memory://{cluster_id}"])


CLUSTER = identity_of(settings_of(CLUSTER_ID))


async def core_of(cluster_id: str) -> Core:
    """A participant of the cluster with this id, in real time, in a memory of its own."""
    clock, rng = SystemClock(), system_random()
    store = Store(open_backend(f"memory://{cluster_id}-{rng.token()}", clock), clock, rng)
    core = await core_on(store, ClusterSettings(), clock, rng)
    return Core(core.store, core.records, core.clock, core.rng, settings_of(cluster_id))


def script(body: str, *arguments: str) -> list[str]:
    """A shell script as a command."""
    return ["sh", "-c", body, "sh", *arguments]


@contextmanager
def local_world(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    """Machines are processes on this host that are not agents: they only wait to be ended."""
    patch.setattr(tempfile, "tempdir", str(tmp_path))
    patch.setattr(local, "_FRAY", ("sh", "-c", "exec sleep 1000", "sh"))
    folder = tmp_path / f"fray-{os.geteuid()}" / "machines"

    def lose(name: str) -> None:
        lock = folder / provider_name(CLUSTER, POOL, name) / "host-0.lock"
        os.kill(int(lock.read_text()), signal.SIGKILL)

    try:
        yield ProviderWorld(ProvisioningSpec(provider="local"), "", lose)
    finally:
        for lock in folder.glob("*/host-*.lock"):
            if local._is_held(lock):
                os.kill(int(lock.read_text()), signal.SIGKILL)


@contextmanager
def command_world(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    """Machines are files of a folder."""
    folder = str(tmp_path)
    settings = CommandSettings(list=script(LIST, folder), create=script(CREATE, folder), delete=script(DELETE, folder))

    def lose(name: str) -> None:
        (tmp_path / provider_name(CLUSTER, POOL, name)).write_text("lost")

    yield ProviderWorld(ProvisioningSpec(provider="command", command=settings), "", lose)


@contextmanager
def slurm_world(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    """Machines are jobs of Slurm, made by the programs of the example."""
    programs, jobs = _programs(tmp_path, patch)
    install_slurm(programs, jobs)

    def lose(name: str) -> None:
        (jobs / f"{provider_name(CLUSTER, POOL, name)}~1").write_text("NODE_FAIL")

    yield ProviderWorld(example_spec("slurm"), "batch", lose)


@contextmanager
def kubernetes_world(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    """Machines are pods, made by the programs and the manifest of the example."""
    programs, pods = _programs(tmp_path, patch)
    install_kubectl(programs, pods)

    def lose(name: str) -> None:
        pod = pods / provider_name(CLUSTER, POOL, name)
        pod.write_text(pod.read_text().replace("Running", "Failed"))

    yield ProviderWorld(example_spec("kubernetes"), "", lose)


def _programs(tmp_path: Path, patch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder that comes first in PATH, and a folder for the state of its programs."""
    programs, kept = tmp_path / "bin", tmp_path / "kept"
    programs.mkdir()
    kept.mkdir()
    (programs / "python3").symlink_to(sys.executable)  # in PATH there may be one that is slow to start
    patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs, kept


def example_spec(name: str) -> ProvisioningSpec:
    """The pool of an example, with the paths of its programs in this project."""
    text = (EXAMPLES / name / "fray.yaml").read_text().replace("/opt/fray", str(EXAMPLES))
    [pool] = yaml.safe_load(text)["pools"].values()
    settings = msgspec.convert(pool["command"], CommandSettings)
    return ProvisioningSpec(provider="command", zones=pool.get("zones", []), command=settings)


@contextmanager
def tpu_world(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    """Machines are nodes of a fake Cloud TPU."""
    fake = FakeTpu()
    with fake.serve() as address:
        patch.setenv(tpu.EMULATOR_VARIABLE, address)
        zone = fake.zones[0]

        def lose(name: str) -> None:
            node = next(path for path in fake.nodes if re.search(rf"-{name}(-0)?$", path))
            fake.preempt(node.rpartition("/")[2])

        spec = ProvisioningSpec(
            provider="tpu",
            machine_type="v5litepod-4",
            zones=[zone],
            spot=True,
            tpu=TpuSettings(project="lab", image="lab/fray"),
        )
        yield ProviderWorld(spec, zone, lose)


@contextmanager
def cloud_run_world(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    """Machines are worker pools of a fake Cloud Run."""
    fake = FakeCloudRun()
    with fake.serve() as address:
        patch.setenv(cloud_run.EMULATOR_VARIABLE, address)

        def lose(name: str) -> None:
            path = next(path for path in fake.worker_pools if path.endswith(f"-{name}"))
            failed = run_v2.Condition.State.CONDITION_FAILED
            fake.worker_pools[path].terminal_condition = run_v2.Condition(state=failed, message="no such image")

        settings = CloudRunSettings(image="lab/fray", project="lab")
        spec = ProvisioningSpec(provider="cloud_run", zones=["us-central1"], min=8, max=8, cloud_run=settings)
        yield ProviderWorld(spec, "us-central1", lose)


@contextmanager
def cloud_run_jobs_world(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    """Machines are executions of a Cloud Run job, which have no names of their own, so one request may make two."""
    fake = FakeCloudRun()
    with fake.serve() as address:
        patch.setenv(cloud_run.EMULATOR_VARIABLE, address)

        def lose(name: str) -> None:
            made = next(path for path, each in fake.executions.items() if name in each.template.containers[0].args)
            fake.finish(made, failed="the container ended")

        settings = CloudRunSettings(image="lab/fray", project="lab")
        spec = ProvisioningSpec(provider="cloud_run", zones=["us-central1"], max=8, cloud_run=settings)
        yield ProviderWorld(spec, "us-central1", lose)


WORLDS = {
    "local": local_world,
    "command": command_world,
    "slurm": slurm_world,
    "kubernetes": kubernetes_world,
    "tpu": tpu_world,
    "cloud_run": cloud_run_world,
    "cloud_run_jobs": cloud_run_jobs_world,
}
