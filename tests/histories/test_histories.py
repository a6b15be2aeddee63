"""Real stores under faults, seen by several processes: whatever each of them was told, one order explains all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.histories.recorder import KEYS, assert_linearizable, record
from tests.support import servers
from tests.support.fault_proxy import fault_proxy
from tests.support.faults import Plan
from tests.support.gcs_emulator import Emulator

SERVERS = {
    "gcs-emulator": servers.gcs_emulator,
    "fake-gcs": servers.fake_gcs,
    "moto": servers.moto,
    "seaweed": servers.seaweed,
}
LASTING = [key for key in KEYS if key.startswith("lasting")]
"""fake-gcs-server deletes whatever the condition, so nothing is deleted there."""
RATE = 0.08
SHORT, LONG = 50, 1500


def calls(short: int = SHORT, long: int = LONG) -> pytest.MarkDecorator:
    thorough = pytest.param(long, marks=[pytest.mark.campaign, pytest.mark.timeout(900)])
    return pytest.mark.parametrize("calls", [short, thorough])


@calls(100, 1500)
def test_local_files(tmp_path: Path, calls: int) -> None:
    assert_linearizable(record(str(tmp_path / "root"), diaries(tmp_path), calls, rate=RATE), haunted=True)


@calls(200, 1500)
@pytest.mark.slow
def test_local_files_without_faults_but_kills(tmp_path: Path, calls: int) -> None:
    assert_linearizable(record(str(tmp_path / "root"), diaries(tmp_path), calls), haunted=False)


@calls()
@pytest.mark.parametrize(
    "server",
    ["gcs-emulator", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fake-gcs", "moto", "seaweed"))],
)
def test_servers(server: str, tmp_path: Path, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with SERVERS[server]() as served, fault_proxy(served.url) as proxy:
        for variable, value in {**served.environment, served.address: proxy.served.url}.items():
            monkeypatch.setenv(variable, value)
        proxy.plan = Plan(RATE, held_back=2)
        keys = LASTING if server == "fake-gcs" else KEYS
        seen = record(f"{served.root}/histories", diaries(tmp_path), calls, keys=keys)
        assert proxy.plan.suffered
        assert_linearizable(seen, haunted=True)


@pytest.mark.slow
def test_a_server_that_ignores_preconditions_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.gcs_emulator(Emulator(ignore_preconditions=True)) as served:
        for variable, value in served.environment.items():
            monkeypatch.setenv(variable, value)
        seen = record(f"{served.root}/histories", diaries(tmp_path), SHORT)
    with pytest.raises(AssertionError, match="the longest order"):
        assert_linearizable(seen, haunted=False)


def diaries(tmp_path: Path) -> Path:
    folder = tmp_path / "diaries"
    folder.mkdir()
    return folder
