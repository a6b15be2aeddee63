"""Unpacking workspaces: archives of Fray keep their content; hostile ones write nothing outside, and end."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from fray_agents.environments import workspace
from fray_agents.environments.cache import EnvironmentFailed, HostCache, HostUnfit
from fray_agents.environments.workspace import copy_tree, unpack, unpacked
from fray_coordinator.jobs.submission import put_blob
from fray_coordinator.store.interface import ANY
from fray_layouts.spec import WorkspaceSpec
from tests.support.archives import directory, file, link, packed
from tests.support.virtual import Cluster


def looks(top: Path) -> dict[str, tuple[str, bytes]]:
    """The mode or kind and the content of everything below."""
    found = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path).encode())
        elif path.is_dir():
            found[name] = ("directory", b"")
        else:
            found[name] = (oct(stat.S_IMODE(path.stat().st_mode)), path.read_bytes())
    return found


LONG = "/".join(["a" * 100] * 4) + "/" + "b" * 200
GOOD = [
    file("a.py", b"print()"),
    file("bin/run", b"#!", mode=0o755),
    file("bin/suid", b"", mode=0o4777),
    file(LONG, b"long"),
    file("n\udcff", b"bytes that are no text"),
    directory("empty"),
    link("pkg/data", "../bin"),
    link("top", "."),
    link("dangling", "nowhere"),
]


def test_files_links_and_directories_arrive_as_they_were(tmp_path: Path) -> None:
    unpack(packed(*GOOD), tmp_path)
    found = looks(tmp_path)
    assert found["a.py"] == ("0o644", b"print()")
    assert found["bin/run"] == ("0o755", b"#!")
    assert found["bin/suid"] == ("0o755", b"")
    assert found[LONG] == ("0o644", b"long")
    assert found["n\udcff"] == ("0o644", b"bytes that are no text")
    assert found["empty"] == ("directory", b"")
    assert (found["pkg/data"], found["top"]) == (("link", b"../bin"), ("link", b"."))


def test_a_copy_is_the_same_and_shares_nothing(tmp_path: Path) -> None:
    unpack(packed(*GOOD, file("large", os.urandom(3 * 2**20))), tmp_path / "made")
    copy_tree(tmp_path / "made", tmp_path / "copy")
    assert looks(tmp_path / "copy") == looks(tmp_path / "made")
    (tmp_path / "copy/a.py").write_bytes(b"changed")
    assert (tmp_path / "made/a.py").read_bytes() == b"print()"


def test_a_copy_needs_no_help_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    (tmp_path / "made").mkdir()
    (tmp_path / "made/large").write_bytes(data := os.urandom(3 * 2**20))
    copy_tree(tmp_path / "made", tmp_path / "copy")
    assert (tmp_path / "copy/large").read_bytes() == data


def special(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("x")
    info.type, info.linkname = kind, "../outside"
    return info


def sized(info: tarfile.TarInfo, size: int) -> tarfile.TarInfo:
    info.size = size
    return info


def header_of(size: int, kind: bytes) -> bytes:
    """An archive that begins with a header of this many zero bytes."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return zstandard.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(size))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "upwards": lambda: packed(file("../outside", b"x")),
    "upwards in the middle": lambda: packed(file("a/../../outside", b"x")),
    "absolute": lambda: packed(file("/tmp/outside", b"x")),
    "its own top": lambda: packed(file("./a", b"x")),
    "a directory upwards": lambda: packed(directory("../outside")),
    "a link upwards": lambda: packed(link("x", "../outside")),
    "an absolute link": lambda: packed(link("x", "/etc")),
    "a file behind a link": lambda: packed(link("x", ".."), file("x/outside", b"x")),
    "a file behind a link that comes later": lambda: packed(file("x/outside", b"x"), link("x", "..")),
    "a link behind a link": lambda: packed(link("x", "y"), link("x/z", "a"), link("y", "../..")),
    "links that lead out together": lambda: packed(directory("a/b"), link("a/b/up", "../.."), link("z", "a/b/up/..")),
    "a link in a circle": lambda: packed(link("x", "y/.."), link("y", "x/../../../..")),
    "a link with two targets": lambda: packed(link("x", "a"), link("x", "b")),
    "a file twice": lambda: packed(file("x", b"1"), file("x", b"2")),
    "a file that is a directory": lambda: packed(file("x", b"1"), file("x/y", b"2")),
    "too long a name": lambda: packed(file("x" * 300, b"1")),
    "too deep a directory": lambda: packed(*[directory("/".join(["d"] * depth)) for depth in range(1, 600)]),
    "a long chain of links": lambda: packed(*[link(f"l{n}", f"l{n + 1}/x") for n in range(2_000)]),
    "a hard link": lambda: packed((special(tarfile.LNKTYPE), b"")),
    "a device": lambda: packed((special(tarfile.BLKTYPE), b"")),
    "a terminal": lambda: packed((special(tarfile.CHRTYPE), b"")),
    "a FIFO": lambda: packed((special(tarfile.FIFOTYPE), b"")),
    "a sparse file": lambda: packed((special(tarfile.GNUTYPE_SPARSE), b"")),
    "a size that is negative": lambda: packed((sized(tarfile.TarInfo("x"), -512), b"")),
    "a file that is cut off": lambda: packed((sized(tarfile.TarInfo("x"), 10**6), b"x"), end=b""),
    "a header of gigabytes": lambda: header_of(2**26, tarfile.XHDTYPE),
    "a name of gigabytes": lambda: header_of(2**26, tarfile.GNUTYPE_LONGNAME),
    "headers without end": lambda: packed(*[(special(tarfile.XGLTYPE), b"")] * 5_000),
    "no tar": lambda: zstandard.compress(b"\x01" * 10_000),
    "no zstd": lambda: b"PK\x03\x04" + bytes(1000),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_writes_nothing_outside_its_folder(what: str, tmp_path: Path) -> None:
    top = tmp_path / "deep" / "top"
    top.mkdir(parents=True)
    with pytest.raises(EnvironmentFailed, match=r"cannot be unpacked: .*submit it again"):
        unpack(HOSTILE[what](), top)
    assert os.listdir(tmp_path) == ["deep"]
    assert os.listdir(tmp_path / "deep") == ["top"]


def test_a_million_entries_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MAX_WORKSPACE_FILES", 1_000)
    one = tarfile.TarInfo("d")
    one.type = tarfile.DIRTYPE
    compressor = zstandard.ZstdCompressor().compressobj()
    archive = b"".join([*(compressor.compress(one.tobuf() * 10**4) for _ in range(100)), compressor.flush()])
    with pytest.raises(EnvironmentFailed, match="more than 1,000 entries"):
        unpack(archive, tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MAX_WORKSPACE_BYTES", 10**6)
    monkeypatch.setattr(workspace, "MAX_WORKSPACE_FILES", 10)
    info = sized(tarfile.TarInfo("zeros"), 10**9)
    compressor = zstandard.ZstdCompressor().compressobj()
    parts = [compressor.compress(part) for part in (info.tobuf(), *[bytes(10**6)] * 100)]
    with pytest.raises(EnvironmentFailed, match="unpacks to more than 1,000,000 bytes"):
        unpack(b"".join([*parts, compressor.flush()]), tmp_path)
    assert (tmp_path / "zeros").stat().st_size < 3 * 10**6


def test_it_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    asked = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise HostUnfit("too slow")

    with pytest.raises(HostUnfit):
        unpack(packed(*[file(str(number), b"x") for number in range(10)]), tmp_path, check)
    assert sorted(os.listdir(tmp_path)) == ["0"]


async def test_a_full_disk_is_the_hosts_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(OSError, match="No space left") as raised:
        unpack(packed(link("x", "y")), tmp_path)
    assert not isinstance(raised.value, EnvironmentFailed)


async def test_it_is_fetched_and_unpacked_once(cluster: Cluster, tmp_path: Path) -> None:
    core = await cluster.core()
    key = await put_blob(core, packed(file("a.py", b"1")))
    cache = HostCache(tmp_path / "cache", 10**9)
    for _ in range(2):
        async with unpacked(core, cache, WorkspaceSpec(blob=key)) as entry:
            assert (entry.path / "a.py").read_bytes() == b"1"
        await core.store.delete(key)


@pytest.mark.parametrize("key", ["jobs/x.json", f"blobs/2026-01/{'0' * 64}/.."])
async def test_a_key_that_is_none_is_refused(key: str, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="is not the key of a blob"):
        async with unpacked(await cluster.core(), HostCache(tmp_path / "cache", 10**9), WorkspaceSpec(blob=key)):
            pass


async def test_an_archive_that_is_gone_or_damaged_is_the_jobs_failure(cluster: Cluster, tmp_path: Path) -> None:
    core = await cluster.core()
    cache = HostCache(tmp_path / "cache", 10**9)
    key = f"blobs/2026-01/{hashlib.sha256(b'').hexdigest()}"
    for content, says in ((None, "is gone"), (packed(file("a", b"")), "is damaged")):
        if content is not None:
            await core.store.put(key, content, ANY)
        with pytest.raises(EnvironmentFailed, match=says):
            async with unpacked(core, cache, WorkspaceSpec(blob=key)):
                pass
    assert cache.entries() == []


def test_archives_of_this_module_are_tars() -> None:
    with tarfile.open(fileobj=io.BytesIO(zstandard.decompress(packed(*GOOD)))) as tar:
        assert tar.getnames() == [info.name for info, _ in GOOD]
