"""The host's cache: each entry is built once for all, never seen half built, and never removed while in use."""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import sys
from pathlib import Path

import pytest

from fray_agents.environments import cache
from fray_agents.environments.cache import HostCache
from fray_runtime.directories import UntrustedDirectory, cache_dir
from tests.support.waiting import eventually

KB = 1000


class Builder:
    """Builds content of a given size and counts how often; waits for `may_end` before it has ended."""

    def __init__(self, size: int = 1, error: Exception | None = None) -> None:
        self.size = size
        self.error = error
        self.count = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, directory: Path) -> None:
        self.count += 1
        assert os.listdir(directory) == [], "it begins with an empty directory"
        (directory / "first").write_bytes(b"x")
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        (directory / "last").write_bytes(b"x" * self.size)


@pytest.fixture
def host_cache(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", 10**9)


def everything_in(host_cache: HostCache) -> list[str]:
    return sorted(os.path.relpath(path, host_cache.root) for path in host_cache.root.rglob("*"))


async def test_an_entry_is_built_once_for_all_users(host_cache: HostCache) -> None:
    build = Builder()
    build.may_end.clear()
    other = HostCache(host_cache.root, host_cache.limit)  # of another agent

    async def use(of: HostCache) -> bool:
        async with of.hold("kind", "key", build) as entry:
            return (entry.path / "last").exists()

    asked = [asyncio.create_task(use(of)) for of in (host_cache, other, host_cache, other)]
    await eventually(lambda: build.count == 1)
    build.may_end.set()
    assert await asyncio.gather(*asked) == [True] * 4
    assert await use(other)
    assert build.count == 1


async def test_users_of_one_entry_do_not_wait_for_each_other(host_cache: HostCache) -> None:
    async with host_cache.hold("kind", "key", Builder()) as first, host_cache.hold("kind", "key", Builder()) as second:
        assert first.path == second.path


@pytest.mark.parametrize("error", [ValueError("no such package"), OSError(errno.ENOSPC, "no space")])
async def test_a_build_that_fails_leaves_nothing_and_the_next_one_tries(
    host_cache: HostCache, error: Exception
) -> None:
    with pytest.raises(type(error)):
        async with host_cache.hold("kind", "key", Builder(error=error)):
            pass
    assert everything_in(host_cache) in (["kind"], ["kind", "kind/key", "kind/key/lock"])
    async with host_cache.hold("kind", "key", Builder()) as entry:
        assert (entry.path / "last").exists()


async def test_a_build_that_is_cancelled_leaves_nothing_and_the_next_one_tries(host_cache: HostCache) -> None:
    build = Builder()
    build.may_end.clear()

    async def use() -> None:
        async with host_cache.hold("kind", "key", build):
            pass

    asked = asyncio.create_task(use())
    await eventually(lambda: build.count == 1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert everything_in(host_cache) == ["kind", "kind/key", "kind/key/lock"]
    build.may_end.set()
    await use()
    assert build.count == 2


_DYING = """
import asyncio, sys
from pathlib import Path
from fray_agents.environments.cache import HostCache

async def build(directory):
    (directory / "first").write_bytes(b"x")
    print("building", flush=True)
    await asyncio.sleep(3600)

async def main():
    async with HostCache(Path(sys.argv[1]), 10**9).hold("kind", "key", build):
        pass

asyncio.run(main())
"""


async def test_remains_of_a_killed_build_are_removed_and_the_next_agent_builds(host_cache: HostCache) -> None:
    program = [sys.executable, "-c", _DYING, str(host_cache.root)]
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    assert await host_cache.trim(0) == []
    assert (host_cache.root / "kind/key/lock").exists(), "what somebody builds is left alone"
    process.kill()
    async with host_cache.hold("kind", "key", Builder()) as entry:
        assert sorted(os.listdir(entry.path)) == ["first", "last"]
    assert sorted(os.listdir(host_cache.root / "kind/key")) == ["content", "lock"]
    await process.wait()


async def use(host_cache: HostCache, key: str, size: int = 1) -> None:
    """Use an entry; its key is also the time of that use, in seconds since 1970."""
    async with host_cache.hold("kind", key, Builder(size)) as entry:
        pass
    os.utime(entry.path.parent / "lock", (int(key), int(key)))


def keys(host_cache: HostCache) -> list[str]:
    return [entry.key for entry in host_cache.entries()]


async def test_the_least_recently_used_entry_goes_first_and_entries_in_use_stay(tmp_path: Path) -> None:
    host_cache = HostCache(tmp_path / "cache", 250 * KB)
    async with host_cache.hold("kind", "2", Builder(100 * KB)) as held:
        os.utime(held.path.parent / "lock", (2, 2))
        await use(host_cache, "3", 100 * KB)
        await use(host_cache, "4", 100 * KB)
        assert keys(host_cache) == ["2", "4"]
    await use(host_cache, "5", 100 * KB)
    assert keys(host_cache) == ["5", "2"], "it was in use until now"


async def test_unused_entries_are_removed_from_a_full_disk(host_cache: HostCache) -> None:
    await use(host_cache, "1")
    async with host_cache.hold("kind", "2", Builder()):
        with pytest.raises(OSError, match=f"full: .{host_cache.root}"):
            async with host_cache.hold("kind", "3", Builder(error=OSError(errno.ENOSPC, "full"))):
                pass
        assert keys(host_cache) == ["2"]


async def test_the_leftovers_of_dead_builders_and_removers_go_with_the_next_trim(host_cache: HostCache) -> None:
    await use(host_cache, "1")
    for left in ("2/building-1f", "3~2e/content", "4"):
        (host_cache.root / "kind" / left).mkdir(parents=True)
    (host_cache.root / "kind/2/lock").touch()
    (host_cache.root / "README").touch()
    assert await host_cache.trim() == []
    assert os.listdir(host_cache.root / "kind") == ["1"]
    assert [entry.key for entry in await host_cache.trim(0)] == ["1"]


async def test_an_entry_of_an_earlier_boot_is_built_again(
    host_cache: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Builder()
    for boot, builds in (("first", 1), ("second", 2), ("second", 2)):
        monkeypatch.setattr(cache, "_boot", lambda boot=boot: boot)
        async with host_cache.hold("kind", "key", build):
            assert build.count == builds


async def test_it_knows_sizes_and_last_uses(host_cache: HostCache) -> None:
    await use(host_cache, "7", 100 * KB)
    (entry,) = host_cache.entries()
    assert (entry.kind, entry.key, entry.last_used) == ("kind", "7", 7)
    assert 100 * KB <= entry.size <= 120 * KB
    async with host_cache.hold("kind", "7", Builder()) as used:
        assert used.path == entry.path
        assert host_cache.entries()[0].last_used > 7


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a~b", "-a", "a\0"])
async def test_names_that_are_no_names_are_refused(host_cache: HostCache, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an entry"):
        async with host_cache.hold("kind", name, Builder()):
            pass


async def test_a_directory_that_others_may_write_into_is_refused(host_cache: HostCache) -> None:
    await use(host_cache, "1")
    (host_cache.root / "kind").chmod(0o777)
    with pytest.raises(UntrustedDirectory):
        await use(host_cache, "2")


def test_it_is_in_the_home_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg/fray"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home/.cache/fray"
    monkeypatch.setenv("HOME", "/proc/nobody")
    assert cache_dir().name == "cache"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # nobody knows this user
    assert cache_dir().name == "cache"
