"""Local files: readable for people, safe between processes, and with clear errors from the disk."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fray_coordinator.clock import SystemClock, system_random
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable
from fray_coordinator.store import file_objects, local
from fray_coordinator.store.file_locks import LOCK_TIMEOUT, lock_holders
from fray_coordinator.store.file_objects import forgo_syncs
from fray_coordinator.store.file_tree import FileTree
from fray_coordinator.store.interface import ABSENT, ANY, Applied, NameAbsent, NotApplied, Rejected
from fray_coordinator.store.local import LocalBackend
from fray_coordinator.store.store import Store


class HurryingClock(SystemClock):
    """A clock on which a second passes with every sleep."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def boottime(self) -> float:
        return super().boottime() + self.ahead

    async def sleep(self, seconds: float) -> None:
        self.ahead += 1
        await asyncio.sleep(0.001)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    clock = HurryingClock()
    return Store(LocalBackend(tmp_path, clock), clock, system_random(), patience=60)


def applied(store: Store, key: str, data: bytes) -> str:
    outcome = asyncio.run(store.put(key, data, ANY))
    assert isinstance(outcome, Applied)
    return outcome.version


def test_a_new_cluster_has_an_inbox_for_plain_tools_that_stays(store: Store, tmp_path: Path) -> None:
    assert asyncio.run(store.get("cluster.json")) is None
    applied(store, "jobs/a.json", b"{}")
    assert not (tmp_path / "inbox").exists(), "it is no cluster's root yet"
    asyncio.run(store.put("cluster.json", b"{}", ABSENT))
    for folder in ("inbox", "inbox/aside"):
        (tmp_path / folder).mkdir(exist_ok=True)
        os.utime(tmp_path / folder, (0, 0))
    for _ in range(2):
        assert asyncio.run(store.list("inbox/")) == []
    assert (tmp_path / "inbox").is_dir()
    assert not (tmp_path / "inbox/aside").exists()


def test_objects_are_plain_files_both_ways(store: Store, tmp_path: Path) -> None:
    applied(store, "jobs/a.json", b"{}")
    assert (tmp_path / "jobs/a.json").read_bytes() == b"{}"
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox/by hand.json").write_bytes(b"[]")
    found = asyncio.run(store.get("inbox/by hand.json"))
    assert found is not None
    assert found.data == b"[]"
    assert [row.key for row in asyncio.run(store.list(""))] == ["inbox/by hand.json", "jobs/a.json"]


def test_a_change_by_hand_is_a_new_version(store: Store, tmp_path: Path) -> None:
    version = applied(store, "key", b"one")
    times = os.stat(tmp_path / "key")
    (tmp_path / "key").write_bytes(b"two")
    os.utime(tmp_path / "key", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert isinstance(asyncio.run(store.delete("key", version)), Rejected)


def test_names_by_hand_that_are_no_keys_are_listed_as_nobodys(store: Store, tmp_path: Path) -> None:
    applied(store, "inbox/good", b"")
    (tmp_path / "inbox/bad\nname").touch()
    Path(os.fsdecode(os.fsencode(tmp_path / "inbox/") + b"/bad\xffname")).touch()
    listed = [row.key for row in asyncio.run(store.list("inbox/", versions=True))]
    assert listed == ["inbox/bad\\nname/", "inbox/bad\\xffname/", "inbox/good"]


def test_a_withdrawal_keeps_a_file_that_a_slow_copy_still_writes(store: Store, tmp_path: Path) -> None:
    version = applied(store, "inbox/slow.json", b"{")
    with (tmp_path / "inbox/slow.json").open("ab") as copying:
        assert asyncio.run(store.withdraw("inbox/slow.json", version, "aside/slow")) == NameAbsent()
        copying.write(b"}")
    aside = asyncio.run(store.get("aside/slow"))
    assert aside is not None
    assert aside.data == b"{}"


def test_a_create_does_not_overwrite_a_file_that_appeared_meanwhile(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain `cp` takes no lock: the last step itself must fail."""
    applied(store, "another", b"")
    fsync = os.fsync

    def drop_by_hand(handle: int) -> None:
        fsync(handle)
        is_ours = os.readlink(f"/proc/self/fd/{handle}").startswith(str(tmp_path))  # not of another test's thread
        if is_ours and not (tmp_path / "key").exists():
            (tmp_path / "key").write_bytes(b"by hand")

    monkeypatch.setattr(os, "fsync", drop_by_hand)
    assert isinstance(asyncio.run(store.put("key", b"ours", ABSENT)), Rejected)
    assert (tmp_path / "key").read_bytes() == b"by hand"
    assert list((tmp_path / ".fray/tmp").iterdir()) == []


def test_only_a_root_that_says_so_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def sync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if path.startswith(str(tmp_path)):  # and not what others in this process write
            synced.append(path)

    monkeypatch.setattr(os, "fsync", sync)
    forgo_syncs(tmp_path / "private")
    for name in ("private", "usual"):
        clock = HurryingClock()
        root = Store(LocalBackend(tmp_path / name, clock), clock, system_random(), patience=60)
        synced.clear()
        applied(root, "jobs/a.json", b"{}")
        asyncio.run(root.delete("jobs/a.json", ANY))
        assert bool(synced) == (name == "usual")


def test_a_stopped_holder_is_named_and_nothing_waits_for_ever(store: Store, tmp_path: Path) -> None:
    applied(store, "key", b"one")
    (lock,) = (tmp_path / ".fray/locks").iterdir()
    program = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX);"
    program += "f.write('pid 1 on another host'); f.flush(); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        try:
            (found,) = lock_holders(FileTree(tmp_path))
            assert found.who.startswith(f"pid {holder.pid} ("), "the kernel knows, whatever the file says"
            with pytest.raises(StoreUnavailable, match=rf"{lock}.*held by pid {holder.pid} .*{LOCK_TIMEOUT:g} s"):
                asyncio.run(store.put("key", b"two", ANY))
            assert asyncio.run(store.get("key")) is not None, "reads take no lock"
        finally:
            holder.kill()
    applied(store, "key", b"three")
    assert list(lock_holders(FileTree(tmp_path))) == []


def test_a_cancelled_writer_keeps_its_lock_until_its_thread_is_done(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "THREAD_BYTES", 0)
    applied(store, "key", b"one")
    held_at_rename: list[bool] = []
    replace = os.replace

    async def act() -> None:
        loop, reached, go = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def slow_replace(source: str, target: str, **folders: int) -> None:
            if target != "key":  # a cluster of this process may write in a thread of its own
                return replace(source, target, **folders)
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(timeout=200)
            held_at_rename.append(bool(list(lock_holders(FileTree(tmp_path)))))
            return replace(source, target, **folders)

        monkeypatch.setattr(os, "replace", slow_replace)
        writer = asyncio.ensure_future(store.put("key", b"two", ANY))
        await reached.wait()
        writer.cancel()
        await asyncio.wait([writer])
        go.set()

    asyncio.run(act())
    assert held_at_rename == [True]
    assert list(lock_holders(FileTree(tmp_path))) == []


def test_a_full_disk_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([OSError(errno.ENOSPC, "No space left on device")] * 2)
    write = os.write

    def full_at_first(handle: int, data: Any) -> int:
        for failure in failures:
            raise failure
        return write(handle, data)

    monkeypatch.setattr(os, "write", full_at_first)
    assert isinstance(asyncio.run(store.put("key", b"data", ABSENT)), Applied)
    found = asyncio.run(store.get("key"))
    assert found is not None
    assert found.data == b"data"


def test_a_disk_that_stays_full_is_unavailable_in_its_own_words(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        asyncio.run(store.put("key", b"data", ABSENT))


def test_a_read_only_disk_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(source: str, target: str, **_: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system", target)

    monkeypatch.setattr(os, "link", read_only)
    with pytest.raises(StoreRefused, match="Read-only file system"):
        asyncio.run(store.put("key", b"data", ABSENT))


def test_a_key_below_an_object_is_refused(store: Store) -> None:
    applied(store, "a", b"")
    with pytest.raises(BadRecord, match="also the folder"):
        asyncio.run(store.put("a/b", b"", ABSENT))
    assert asyncio.run(store.get("a/b")) is None
    assert asyncio.run(store.delete("a/b")) == NameAbsent()


def test_the_files_of_killed_writers_are_swept_after_a_day(store: Store, tmp_path: Path) -> None:
    applied(store, "key", b"")
    for name, age in (("old", file_objects.ABANDONED_SECONDS + 60), ("new", 60)):
        (tmp_path / ".fray/tmp" / name).touch()
        now = SystemClock().wall()
        os.utime(tmp_path / ".fray/tmp" / name, (now - age, now - age))
    backend = LocalBackend(tmp_path, SystemClock())
    asyncio.run(backend.put("key", b"2", ANY))
    assert [path.name for path in (tmp_path / ".fray/tmp").iterdir()] == ["new"]


def test_a_writer_that_is_cancelled_before_its_thread_starts_lets_go_of_its_lock(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "THREAD_BYTES", 0)
    applied(store, "key", b"one")

    async def act() -> None:
        busy, go = asyncio.get_running_loop(), threading.Event()
        busy.set_default_executor(ThreadPoolExecutor(max_workers=1))
        blocking = busy.run_in_executor(None, go.wait, 30)
        backend = LocalBackend(tmp_path, SystemClock())
        writer = asyncio.ensure_future(backend.put("key", b"two", ANY))
        await asyncio.sleep(0)
        assert len(list(lock_holders(FileTree(tmp_path)))) == 1, "it has its lock and waits for the thread"
        writer.cancel()
        await asyncio.wait([writer])
        go.set()
        await blocking

    asyncio.run(act())
    assert list(lock_holders(FileTree(tmp_path))) == []


def test_on_a_full_disk_a_delete_works_and_no_lock_stays_held(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    applied(store, "key", b"one")
    monkeypatch.setattr(os, "pwrite", no_room)
    assert asyncio.run(store.delete("key")) == NameAbsent()
    assert list(lock_holders(FileTree(tmp_path))) == []


async def test_a_waiting_writer_does_not_stop_the_loop(tmp_path: Path) -> None:
    class ToldOfSleep(SystemClock):
        def __init__(self) -> None:
            self.sleeping = asyncio.Event()

        async def sleep(self, seconds: float) -> None:
            self.sleeping.set()
            await super().sleep(seconds)

    clock = ToldOfSleep()
    backend = LocalBackend(tmp_path, clock)
    await backend.put("key", b"one", ANY)
    (lock,) = (tmp_path / ".fray/locks").iterdir()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = asyncio.ensure_future(backend.put("key", b"two", ANY))
        await clock.sleeping.wait()
        found = await backend.get("key")
        assert found is not None
        assert found.data == b"one"
    await writer
    assert (tmp_path / "key").read_bytes() == b"two"


def test_the_storage_may_be_taken_away_and_come_back(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "root", SystemClock())
    asyncio.run(backend.put("a/b", b"", ABSENT))
    (tmp_path / "root").rename(tmp_path / "away")
    for mount_point in (False, True):
        if mount_point:
            (tmp_path / "root").mkdir()
        with pytest.raises(NotApplied):
            asyncio.run(backend.put("a/c", b"", ABSENT))
        with pytest.raises(NotApplied):
            asyncio.run(backend.get("a/b"))
        with pytest.raises(NotApplied):
            asyncio.run(backend.list("a/", None, None, False))
    (tmp_path / "root").rmdir()
    (tmp_path / "away").rename(tmp_path / "root")
    asyncio.run(backend.put("a/c", b"", ABSENT))


def test_a_listing_removes_folders_that_have_been_empty_for_long(store: Store, tmp_path: Path) -> None:
    for key in ("queue/1/a", "queue/2/b"):
        applied(store, key, b"x")
        asyncio.run(store.delete(key))
    os.utime(tmp_path / "queue/1", (0, 0))
    assert asyncio.run(store.list("queue/")) == []
    assert sorted(path.name for path in (tmp_path / "queue").iterdir()) == ["2"]
    applied(store, "queue/1/a", b"x")
    assert [row.key for row in asyncio.run(store.list("queue/"))] == ["queue/1/a"]
