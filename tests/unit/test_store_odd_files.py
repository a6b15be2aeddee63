"""Local files: an odd path harms only its own name, is listed, and costs nobody time or memory."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fray_coordinator.clock import SystemClock, system_random
from fray_coordinator.errors import BadRecord, StoreRefused
from fray_coordinator.store import interface
from fray_coordinator.store.interface import ABSENT, ANY, Listed, NameAbsent, Object
from fray_coordinator.store.local import LocalBackend
from fray_coordinator.store.probe import probe
from fray_coordinator.store.store import Store
from fray_layouts.errors import InvalidInput
from tests.support.users import place_for_all, unprivileged

KEYS = ("inbox/odd.json", "jobs/odd.json", "work/job/1/0/result", "secrets/rpc.json")
PRIVATE = b"what the agent's user alone may read"


def store_at(root: Path) -> Store:
    clock = SystemClock()
    return Store(LocalBackend(root, clock), clock, system_random(), patience=5)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Under `tmp_path / "root"`, with one object in every folder of `KEYS`."""
    found = store_at(tmp_path / "root")
    for key in KEYS:
        asyncio.run(found.put(f"{key}-sound", b"{}", ABSENT))
    return found


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.open(path.parent, os.O_RDONLY)
        sock.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def a_link_to_endless_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_a_private_file(path: Path) -> None:
    private = path.parents[2] / "private"
    private.write_bytes(PRIVATE)
    path.symlink_to(private)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("/nowhere")


def a_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 * 10**9)


def a_folder(path: Path) -> None:
    path.mkdir()


ODD = [a_pipe, a_socket, a_link_to_endless_zeros, a_link_to_a_private_file, a_link_to_nothing, a_huge_file, a_folder]


def quickly(store: Store, key: str) -> BaseException | object:
    """The error of a read. A read that blocks is an error rather than the end of the tests."""
    answer: list[BaseException | object] = []

    def read() -> None:
        try:
            answer.append(asyncio.run(store.get(key)))
        except BaseException as error:
            answer.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(200)
    assert answer, "the read blocks"
    return answer[0]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("make", ODD)
def test_a_path_that_is_no_regular_file_harms_its_name_alone(
    store: Store, tmp_path: Path, make: Callable[[Path], None], key: str
) -> None:
    make(tmp_path / "root" / key)
    error = quickly(store, key)
    assert isinstance(error, BadRecord), error
    assert key in str(error)
    with pytest.raises(BadRecord):
        asyncio.run(store.put(key, b"{}", ABSENT))
    assert asyncio.run(store.get(f"{key}-sound")) is not None
    if make is not a_folder:
        assert asyncio.run(store.delete(key)) == NameAbsent()
        asyncio.run(store.put(key, b"{}", ABSENT))
        assert asyncio.run(store.get(key)) is not None


@pytest.mark.parametrize("make", ODD)
def test_a_path_that_is_no_regular_file_is_listed(store: Store, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "root/jobs/odd.json")
    named = "jobs/odd.json/" if make is a_folder else "jobs/odd.json"
    for versions in (False, True):
        rows = asyncio.run(store.list("jobs/", versions=versions))
        assert sorted(row.key for row in rows) == sorted([named, "jobs/odd.json-sound"])
        assert [bool(row.version) for row in rows if row.key != named] == [versions]
        assert [row.version for row in rows if row.key == named] == [None]


def test_no_link_among_the_folders_is_followed(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.json").write_bytes(PRIVATE)
    (tmp_path / "root/agents").symlink_to(outside)
    with pytest.raises(BadRecord, match="link"):
        asyncio.run(store.get("agents/a.json"))
    with pytest.raises(BadRecord, match="link"):
        asyncio.run(store.put("agents/b.json", b"{}", ANY))
    with pytest.raises(BadRecord, match="link"):
        asyncio.run(store.delete("agents/a.json"))
    assert [path.name for path in outside.iterdir()] == ["a.json"]
    assert "agents" in [row.key for row in asyncio.run(store.list(""))]


def test_the_root_itself_may_be_a_link(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(tmp_path / "root")
    assert asyncio.run(store_at(tmp_path / "elsewhere").get("jobs/odd.json-sound")) is not None


def test_a_private_file_does_not_leave_by_way_of_the_inbox(store: Store, tmp_path: Path) -> None:
    """Not even if the link replaces a file that was just looked at."""
    a_link_to_a_private_file(tmp_path / "root/inbox/odd.json")
    with pytest.raises(BadRecord):
        asyncio.run(store.withdraw("inbox/odd.json", "any version", "inbox/aside/odd"))
    assert not (tmp_path / "root/inbox/aside").exists() or not list((tmp_path / "root/inbox/aside").iterdir())


def test_only_the_top_level_of_the_inbox_is_read(store: Store, tmp_path: Path) -> None:
    inbox = tmp_path / "root/inbox"
    for folder in ("a", "b/c", "rejected/d", "aside"):
        (inbox / folder).mkdir(parents=True)
        (inbox / folder / "x.json").touch()
    assert [row.key for row in asyncio.run(store.list("inbox/"))] == [
        "inbox/a/",
        "inbox/aside/x.json",
        "inbox/b/",
        "inbox/odd.json-sound",
        "inbox/rejected/d/",
    ]


@pytest.mark.parametrize("theirs", ["names/b/c.json", "names"])
def test_a_folder_that_others_make_at_the_same_time(store: Store, theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have filled it before ours is ready, or may only just have made it."""
    root, rename = Path(store.root.removeprefix("file://")), os.rename

    def others_first(source: str, target: str, **where: int) -> None:
        monkeypatch.undo()
        folder = root / theirs
        (folder.parent if folder.suffix else folder).mkdir(parents=True)
        if folder.suffix:
            folder.touch()
        rename(source, target, **where)

    monkeypatch.setattr(os, "rename", others_first)
    asyncio.run(store.put("names/a/b.json", b"{}", ABSENT))
    assert (root / "names/a/b.json").exists()


@pytest.mark.parametrize("area", ["inbox", "jobs", "work"])
def test_folders_without_end(store: Store, tmp_path: Path, area: str) -> None:
    before = os.getcwd()
    os.chdir(tmp_path / "root" / area)
    try:
        for _ in range(1500):
            os.mkdir("deeper")
            os.chdir("deeper")
        (Path("x.json")).touch()
    finally:
        os.chdir(before)
    rows = [row.key for row in asyncio.run(store.list(f"{area}/"))]
    subprocess.run(["rm", "-r", tmp_path / "root" / area], check=True)  # `shutil.rmtree` cannot
    assert [key[:12] for key in rows if "sound" not in key] == [f"{area}/deeper/"[:12]]


def test_names_as_long_as_the_file_system_allows(store: Store, tmp_path: Path) -> None:
    (tmp_path / "root/jobs" / ("é" * 127)).touch()
    assert [len(row.key) for row in asyncio.run(store.list("jobs/"))] == [19, 132]


def test_an_unreadable_path_is_one_odd_object_and_an_unreadable_area_refuses() -> None:
    """A file or a folder deeper down is one odd object. An unreadable root or area refuses."""

    def look() -> list[str]:
        root = place / "root"
        store = store_at(root)
        for key in ("work/job/1", "work/other/1", "jobs/a.json", "jobs/b.json"):
            asyncio.run(store.put(key, b"{}", ABSENT))
        found = []

        def tell(attempt: Coroutine[Any, Any, Object | list[Listed] | None]) -> None:
            try:
                answer = asyncio.run(attempt)
                found.append(" ".join(row.key for row in answer) if isinstance(answer, list) else "an object")
            except (BadRecord, StoreRefused) as error:
                found.append(type(error).__name__)

        for closed, key in (("work/job", "work/job/1"), ("jobs/a.json", "jobs/a.json"), ("jobs", "jobs/b.json")):
            mode = (root / closed).stat().st_mode
            (root / closed).chmod(0)
            tell(store.get(key))
            tell(store.list(key.rpartition("/")[0] + "/"))
            tell(store.list("work/"))
            (root / closed).chmod(mode)
        return found

    with place_for_all(0o777) as place:
        assert unprivileged(look) == [
            *("BadRecord", "BadRecord", "work/job/ work/other/1"),
            *("BadRecord", "jobs/a.json jobs/b.json", "work/job/1 work/other/1"),
            *("StoreRefused", "StoreRefused", "work/job/1 work/other/1"),
        ]


@pytest.mark.parametrize("spoiled", [".fray/tmp", ".fray/locks", ".fray/locks/*"])
def test_a_fault_of_a_path_that_every_write_needs_is_the_stores_fault(
    store: Store, tmp_path: Path, spoiled: str
) -> None:
    asyncio.run(store.put("jobs/a.json", b"{}", ANY))
    for path in (tmp_path / "root").glob(spoiled):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    with pytest.raises(StoreRefused, match=re.escape(spoiled.rstrip("*"))):
        asyncio.run(store.put("jobs/a.json", b"{ }", ANY))
    assert asyncio.run(store.get("jobs/a.json")) is not None
    told = " ".join(finding.what for finding in asyncio.run(probe(str(tmp_path / "root"))) if finding.remedy)
    assert "link" in told


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("inbox/x.json", interface.MAX_SPEC_BYTES),
        ("inbox/aside/x", interface.MAX_SPEC_BYTES),
        ("jobs/x.json", interface.MAX_RECORD_BYTES),
        ("pending/default/x", interface.MAX_RECORD_BYTES),
        ("queues/n/q~1/segments/a/b/c~lease", interface.MAX_RECORD_BYTES),
        ("queues/n/q~1/segments/a/b/c", interface.MAX_DATA_BYTES),
        ("blobs/2030-01/x", interface.MAX_DATA_BYTES),
        ("work/j/1/0/log-00000001", interface.MAX_DATA_BYTES),
    ],
)
def test_how_large_an_object_may_be(store: Store, tmp_path: Path, key: str, most: int) -> None:
    path = tmp_path / "root" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(most + 1)
    with pytest.raises(BadRecord, match=f"{key}.* more than the {most} bytes"):
        asyncio.run(store.get(key))


def test_nothing_is_written_that_could_not_be_read(store: Store) -> None:
    key = "inbox/large.json"
    asyncio.run(store.put(key, b" " * interface.MAX_SPEC_BYTES, ABSENT))
    assert asyncio.run(store.get(key)) is not None
    with pytest.raises(InvalidInput, match="at most"):
        asyncio.run(store.put(key, b" " * (interface.MAX_SPEC_BYTES + 1), ANY))


def test_a_file_that_grows_while_it_is_read(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read goes to the file's end at that moment, and never beyond the size limit of its name."""
    path = tmp_path / "root/inbox/grows.json"
    path.write_bytes(b"a" * 10)
    read, rest = os.read, [b"b" * 100_000, b"c" * 10]

    def growing(handle: int, most: int) -> bytes:
        data = read(handle, most)
        if rest:
            with path.open("ab") as file:
                file.write(rest.pop(0))
        return data

    monkeypatch.setattr(os, "read", growing)
    found = asyncio.run(store.get("inbox/grows.json"))
    assert found is not None
    assert len(found.data) == 100_020
