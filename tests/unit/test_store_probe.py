"""`fray doctor ROOT` reports each fault of a root, and nothing that is right."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray_coordinator.clock import SystemClock
from fray_coordinator.store import probe as store_probe
from fray_coordinator.store.buckets import ServerClock
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.opening import OVERRIDE_VARIABLE, network_file_system, open_backend
from fray_coordinator.store.probe import Finding, probe, unfitness
from tests.support.gcs_emulator import Emulator
from tests.support.servers import Server, fake_gcs, gcs_emulator, moto

MOUNTS = r"""/dev/sda1 / ext4 rw 0 0
server:/export /mnt/my\040nfs nfs4 rw 0 0
/dev/sdb1 /mnt/my\040nfs/disk xfs rw 0 0
host /mnt/9 9p rw 0 0
bucket /mnt/gcs fuse.gcsfuse rw 0 0
"""


def problems(root: str) -> list[Finding]:
    return [finding for finding in asyncio.run(probe(root)) if finding.severity != "ok"]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    def lead_to(server: Server) -> str:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        return f"{server.root}/root"

    return lead_to


@pytest.fixture
def emulated(at: Any) -> Iterator[tuple[Emulator, str]]:
    emulator = Emulator()
    with gcs_emulator(emulator) as server:
        yield emulator, at(server)


def test_nothing_is_wrong_with_a_good_bucket_and_nothing_is_left_in_it(emulated: tuple[Emulator, str]) -> None:
    emulator, root = emulated
    findings = asyncio.run(probe(root))
    assert {finding.severity for finding in findings} == {"ok"}
    assert len(findings) == 8
    assert emulator.names == []


def test_nothing_is_wrong_with_a_local_folder(tmp_path: Path) -> None:
    assert problems(str(tmp_path / "new")) == []
    assert [path for path in (tmp_path / "new/doctor").rglob("*") if path.is_file()] == []


def test_a_store_without_conditions_is_an_error(emulated: tuple[Emulator, str]) -> None:
    emulator, root = emulated
    emulator.ignore_preconditions = True
    found = problems(root)
    assert [finding.severity for finding in found] == ["error", "error", "error", "warning"]
    assert "created again" in found[0].what
    assert "changed although" in found[1].what
    assert "deleted although" in found[2].what
    assert "sent again with every poll" in found[3].what


def test_a_store_with_some_conditions_is_an_error(at: Any) -> None:
    with fake_gcs() as server:
        found = problems(at(server))
    assert [(finding.severity, finding.what[:22]) for finding in found] == [
        ("error", "an object was deleted "),
        ("warning", "an unchanged object is"),
    ]
    assert "good enough to try things out" in found[0].remedy
    assert "Two consumers may get the same item of a queue" in found[0].remedy


def test_folders_in_another_order_are_a_note_with_the_consequence(emulated: tuple[Emulator, str]) -> None:
    emulator, root = emulated
    emulator.folders_first = True
    found = only(problems(root))
    assert found.severity == "warning"
    assert "jobs, actors and queues do not depend on that" in found.remedy


def test_a_joining_agent_gets_errors_alone_and_nothing_while_the_store_is_away(
    emulated: tuple[Emulator, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator, root = emulated
    assert asyncio.run(unfitness(root)) == []
    emulator.denied = frozenset(["DELETE"])
    assert "storage.objects.delete" in only(asyncio.run(unfitness(root))).what
    emulator.denied, emulator.ignore_preconditions = frozenset(), True
    assert [finding.what[:18] for finding in asyncio.run(unfitness(root))] == [
        "an object that exi",
        "an object was chan",
        "an object was dele",
    ]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    assert asyncio.run(unfitness(root)) == []


@pytest.mark.parametrize(("kind", "times"), [("DELETE", 99), ("LIST", 99), ("POST", 1), ("GET", 1)])
def test_a_joining_agent_gets_what_was_found_although_other_requests_get_no_answer(
    emulated: tuple[Emulator, str], kind: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator, root = emulated
    monkeypatch.setattr(store_probe, "TRY_PAUSE", 0.0)
    emulator.ignore_preconditions, emulator.unanswered[kind] = True, times
    assert "created again" in asyncio.run(unfitness(root))[0].what


def test_reads_without_times_are_an_error(emulated: tuple[Emulator, str]) -> None:
    emulator, root = emulated
    emulator.without_times = True
    assert "last-modified" in only(problems(root)).what


def test_times_of_objects_that_are_not_the_storages_are_an_error(
    emulated: tuple[Emulator, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, root = emulated
    monkeypatch.setattr(ServerClock, "offset", lambda self: 3600.0)
    found = problems(root)
    assert ("error", "the time of an object that was just written differs by 3") in [
        (finding.severity, finding.what[:56]) for finding in found
    ]


def test_versions_that_do_not_change_are_found_where_a_clusters_objects_are(emulated: tuple[Emulator, str]) -> None:
    emulator, root = emulated
    for name, text in (("a", "1"), ("b", "2")):
        asyncio.run(_put(root, f"jobs/{name}.json", text.encode()))
    emulator.one_version = "root/jobs/"
    whats = [finding.what for finding in problems(root) if finding.severity == "error"]
    assert "an object was changed although its version was another (under jobs/)" in whats
    assert "objects under jobs/ have the same version although their contents differ" in whats


async def _put(root: str, key: str, data: bytes) -> None:
    backend = open_backend(root, SystemClock())
    await backend.put(key, data, ANY)
    await backend.close()


def test_nothing_is_wrong_with_s3(at: Any) -> None:
    with moto() as server:
        assert problems(at(server)) == []


@pytest.mark.parametrize(
    ("settings", "severity", "words"),
    [
        ({"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "warning", "for 7 days"),
        ({"versioning": {"enabled": True}}, "warning", "versioning"),
        ({"lifecycle": {"rule": [{}, {}]}}, "warning", "2 lifecycle rules"),
        ({"retentionPolicy": {"retentionPeriod": "3600"}}, "error", "retention policy of 3600 s"),
        ({"defaultEventBasedHold": True}, "error", "event-based hold"),
    ],
)
def test_bucket_settings(emulated: tuple[Emulator, str], settings: dict[str, Any], severity: str, words: str) -> None:
    emulator, root = emulated
    emulator.settings = settings
    finding = only(problems(root))
    assert finding.severity == severity
    assert words in finding.what
    assert finding.remedy


@pytest.mark.parametrize(
    ("denied", "severity", "words"),
    [
        ("LIST", "error", "storage.objects.list"),
        ("GET", "error", "storage.objects.get"),
        ("POST", "error", "storage.objects.create"),
        ("DELETE", "error", "storage.objects.delete"),
        ("SETTINGS", "warning", "storage.buckets.get"),
    ],
)
def test_missing_rights(emulated: tuple[Emulator, str], denied: str, severity: str, words: str) -> None:
    emulator, root = emulated
    emulator.denied = frozenset([denied])
    found = problems(root)
    assert only(found).severity == severity
    assert words in only(found).what


def test_a_wrong_clock(emulated: tuple[Emulator, str]) -> None:
    emulator, root = emulated
    emulator.clock_ahead = 120
    assert only(problems(root)).what in {f"this host's clock is {n} s behind the store's" for n in (119, 120, 121)}
    emulator.clock_ahead = -120
    assert "ahead of" in only(problems(root)).what


def test_a_missing_bucket(emulated: tuple[Emulator, str]) -> None:
    found = only(problems("gs://nowhere/root"))
    assert found.severity == "error"
    assert "the bucket nowhere does not exist; correct its name, or make it: `gcloud " in found.what
    assert found.what.endswith("need the right storage.buckets.create")


def test_a_missing_bucket_of_s3(at: Any) -> None:
    with moto() as server:
        at(server)
        found = only(problems("s3://nowhere/root"))
    assert found.severity == "error"
    assert "the bucket nowhere does not exist; correct its name, or make it: `aws " in found.what


def test_a_folder_that_cannot_be_made_is_told_once() -> None:
    assert [finding.severity for finding in problems("/proc/no-root")] == ["error"]


def test_a_root_that_cannot_be_opened() -> None:
    assert only(problems("ftp://somewhere")).severity == "error"


def test_the_process_that_holds_a_lock_for_long_is_named(tmp_path: Path) -> None:
    assert problems(str(tmp_path)) == []
    lock = sorted((tmp_path / ".fray/locks").iterdir())[0]
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = problems(str(tmp_path))
    assert found
    assert all(f"by pid {os.getpid()} (" in finding.what for finding in found), found


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me", None),
        ("/mnt/my nfs/cluster", "nfs4"),
        ("/mnt/my nfs/disk/cluster", None),
        ("/mnt/9/x", "9p"),
        ("/mnt/gcs", "fuse.gcsfuse"),
        ("/mnt/gcsx", None),
    ],
)
def test_network_file_systems_are_told_by_their_mounts(folder: str, kind: str | None) -> None:
    assert network_file_system(Path(folder), MOUNTS) == kind


def test_a_network_file_system_is_an_error_unless_insisted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fray_coordinator.store.opening._mounts", lambda: f"server:/ {tmp_path} nfs rw 0 0")
    refused = only(problems(str(tmp_path)))
    assert refused.severity == "error"
    assert OVERRIDE_VARIABLE in refused.remedy
    monkeypatch.setenv(OVERRIDE_VARIABLE, "1")
    insisted = only(problems(str(tmp_path)))
    assert insisted.severity == "warning"
    assert "nfs" in insisted.what
