"""The example of a pool that makes its own machines, here and on the fakes of clouds. It checks its own results."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from fray_agents.provisioning.providers import cloud_run, tpu
from fray_layouts.records import MachineRecord
from tests.support.booted_agents import BootedAgents
from tests.support.fake_cloud_run import FakeCloudRun
from tests.support.fake_tpu import FakeTpu

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "autoscale"
ZONE, REGION, SLICE_TYPE = "us-central2-b", "us-central1", "v4-16"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    found = importlib.util.spec_from_file_location("autoscale_example", FOLDER / "main.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "autoscale_example", module)
    found.loader.exec_module(module)
    return module


def check(output: Path, printed: str) -> None:
    assert "nothing waits, and no machine is left" in printed
    assert output.read_bytes().startswith(b"\x89PNG")


def test_on_this_host(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.run(example.here(), tmp_path / "chart.png")
    check(tmp_path / "chart.png", capsys.readouterr().out)


def test_on_slices_of_cloud_tpu(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTpu(zones=(ZONE,), boot=BootedAgents().start_hosts)

    def preempt(machine: MachineRecord) -> None:
        [node] = [path for path in fake.nodes if machine.name in path]
        fake.preempt(node.rpartition("/")[2])

    fields = {
        "provider": "tpu",
        "machine_type": SLICE_TYPE,
        "zones": [ZONE],
        "spot": True,
        "tpu": {"project": "lab", "image": "lab/fray"},
    }
    with fake.serve() as address:
        monkeypatch.setenv(tpu.EMULATOR_VARIABLE, address)
        example.run(example.Place(fields, SLICE_TYPE, preempt), tmp_path / "chart.png")
    assert not fake.nodes
    check(tmp_path / "chart.png", capsys.readouterr().out)


def test_on_executions_of_cloud_run(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    booted = BootedAgents()
    fake = FakeCloudRun()

    def boot(arguments: list[str]) -> Callable[[], None]:
        """An execution ends when its agent does. If the agent was killed, the execution has failed."""
        execution, stop = [*fake.executions][-1], booted.start(arguments)
        process = booted.of_machine[arguments[arguments.index("--machine") + 1]][-1]

        def follow() -> None:
            failed = process.wait() != 0
            with suppress(KeyError):  # it was deleted
                fake.finish(execution, "killed" if failed else "")

        threading.Thread(target=follow, daemon=True).start()
        return stop

    fake.boot = boot

    def preempt(machine: MachineRecord) -> None:
        for process in booted.of_machine[machine.name]:
            process.kill()

    settings = {"image": "lab/fray", "project": "lab"}
    fields = {"provider": "cloud_run", "zones": [REGION], "cloud_run": settings}
    with fake.serve() as address:
        monkeypatch.setenv(cloud_run.EMULATOR_VARIABLE, address)
        example.run(example.Place(fields, "", preempt), tmp_path / "chart.png")
    check(tmp_path / "chart.png", capsys.readouterr().out)
