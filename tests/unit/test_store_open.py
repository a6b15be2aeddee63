"""Roots: which root opens which store, which are refused, and with which words."""

from __future__ import annotations

import asyncio
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fray_coordinator.errors import StoreRefused, StoreUnavailable
from fray_coordinator.store.interface import ABSENT, Applied, Object
from fray_coordinator.store.metering import RequestCounts
from fray_coordinator.store.opening import open_store
from fray_layouts.errors import InvalidInput
from tests.support.gcs_emulator import Emulator
from tests.support.servers import AWS, gcs_emulator, moto


async def write(root: str, key: str = "key", patience: float = 60.0) -> None:
    store = await open_store(root, patience=patience)
    try:
        assert isinstance(await store.put(key, b"data", ABSENT), Applied)
    finally:
        await store.close()


async def read(root: str, key: str = "key") -> bytes | None:
    store = await open_store(root)
    try:
        found = await store.get(key)
        return found.data if found else None
    finally:
        await store.close()


@contextmanager
def without_rights() -> Iterator[None]:
    """Become another user if this one may do anything."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.parametrize("root", ["memory://here", "PATH", "PATH/", "file://PATH", "file://PATH%20x", "PATH/new/deep"])
def test_the_next_opening_reads_the_data_of_the_last(root: str, tmp_path: Path) -> None:
    root = root.replace("PATH", str(tmp_path))
    assert asyncio.run(read(root)) is None
    asyncio.run(write(root))
    assert asyncio.run(read(root)) == b"data"


def test_the_root_of_a_store_opens_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def root_of(root: str) -> str:
        return (await open_store(root)).root

    monkeypatch.chdir(tmp_path)
    root = asyncio.run(root_of("a folder"))
    assert root == f"file://{tmp_path}/a%20folder"
    assert asyncio.run(root_of(root)) == root
    asyncio.run(write(root))
    assert (tmp_path / "a folder/key").read_bytes() == b"data"


@pytest.mark.parametrize(
    "root",
    [
        "",
        "ftp://host/x",
        "gs:/bucket",
        "gs:bucket",
        "gs//bucket/x",
        "gs://",
        "s3:///x",
        "file://relative",
        "gs://b/a//c",
    ],
)
def test_invalid_roots_are_named(root: str) -> None:
    with pytest.raises(InvalidInput, match="root"):
        asyncio.run(open_store(root))


async def test_a_root_that_cannot_be_made_is_refused_at_once() -> None:
    store = await open_store("/proc/no-root")
    with pytest.raises(StoreRefused, match="cannot be created: No such file or directory; give a folder on a disk"):
        await store.put("cluster.json", b"{}", ABSENT)


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefused, match="file is a file"):
        asyncio.run(open_store(f"{tmp_path}/file/below/it"))
    with pytest.raises(StoreRefused, match="is a file"):
        asyncio.run(open_store(str(tmp_path / "file")))


def test_a_folder_without_the_right_to_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o000)
    with without_rights(), pytest.raises(StoreRefused, match=r"no right to read|Permission denied"):
        asyncio.run(read(str(tmp_path)))
    tmp_path.chmod(0o700)


def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    with without_rights(), pytest.raises(StoreRefused, match=r"put .*right to read and write"):
        asyncio.run(write(f"{tmp_path}/new" if os.geteuid() == 65534 else "/proc/self/new"))


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_missing_library_names_the_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("google.auth", "fray_coordinator.store.gcs", "botocore.session"):
        monkeypatch.setitem(sys.modules, module, None)
    for variable in AWS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    extra = {"gs": "gcs", "s3": "s3"}[scheme]
    with pytest.raises(StoreRefused, match=rf"in a clone of Fray: pip install '\.\[{extra}\]'"):
        asyncio.run(open_store(f"{scheme}://bucket/root"))


def test_a_bucket_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with gcs_emulator() as server:
        monkeypatch.setenv(server.address, server.url)
        with pytest.raises(StoreRefused, match="bucket nowhere does not exist"):
            asyncio.run(open_store("gs://nowhere/root"))
    with moto() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        with pytest.raises(StoreRefused, match="bucket nowhere does not exist"):
            asyncio.run(open_store("s3://nowhere/root"))


def test_a_bucket_without_rights_names_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with gcs_emulator(Emulator(denied=frozenset(["GET"]))) as server:
        monkeypatch.setenv(server.address, server.url)
        with pytest.raises(StoreRefused, match=r"get gs://bucket/root/.*storage\.objects\.get"):
            asyncio.run(open_store("gs://bucket/root"))


@pytest.mark.parametrize(("root", "address"), [("gs://b", "STORAGE_EMULATOR_HOST"), ("s3://b", "AWS_ENDPOINT_URL")])
def test_a_server_that_is_away(root: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {**AWS, address: "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(StoreUnavailable, match="onnect"):
        asyncio.run(open_store(root, patience=0.3))


@pytest.mark.parametrize(("root", "address"), [("gs://b", "STORAGE_EMULATOR_HOST"), ("s3://b", "AWS_ENDPOINT_URL")])
def test_a_server_that_breaks_every_connection(root: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class HangUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HangUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for variable, value in {**AWS, address: f"http://127.0.0.1:{server.server_address[1]}"}.items():
            monkeypatch.setenv(variable, value)
        with pytest.raises(StoreUnavailable, match="onnection"):
            asyncio.run(open_store(root, patience=0.3))
        server.shutdown()


def test_every_request_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = Emulator()

    async def act(root: str) -> RequestCounts:
        store = await open_store(root)
        for number in range(5):
            await store.put(f"key{number}", b"", ABSENT)
        await store.put("key0", b"other", ABSENT)
        await store.list("key", after="key0", limit=2)
        await store.list("key", versions=True)
        await store.delete("key1")
        await store.close()
        return store.usage

    with gcs_emulator(emulator) as server:
        monkeypatch.setenv(server.address, server.url)
        usage = asyncio.run(act(f"{server.root}/count"))
    assert emulator.asked == {"GET": 2, "POST": 6, "LIST": 2, "DELETE": 1}
    assert usage == RequestCounts(writes=6, lists=2, reads=2, deletes=1)


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", ".", "a/../b", "a\0b", "a\nb", "x" * 256, "a/" * 451, "\ud800"]
)
def test_a_key_that_no_store_can_hold_is_the_same_on_all(key: str) -> None:
    with pytest.raises(InvalidInput, match="key"):
        asyncio.run(write("memory://keys", key))


def test_the_private_folder_is_nobodys_key() -> None:
    with pytest.raises(InvalidInput, match="belongs to the store"):
        asyncio.run(write("memory://keys", ".fray/locks/00"))


def test_libraries_that_take_long_to_import_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import asyncio, sys
from fray_coordinator.core import open_core
from fray_coordinator.errors import RootMismatch
for root in ("memory://x", "s3://bucket/x", "gs://bucket/x"):
    try:
        asyncio.run(open_core(root, create=False))
    except RootMismatch as error:
        print(error)
print([name for name in sys.modules if name in ("aiohttp", "botocore", "google.oauth2", "requests", "urllib.request")])
"""
    with gcs_emulator() as server:
        environment = {**os.environ, **AWS, server.address: server.url, "AWS_ENDPOINT_URL": server.url}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
    *told, modules = ran.stdout.splitlines()
    assert [line.partition(";")[0] for line in told] == [
        f"there is no cluster at {root}" for root in ("memory://x", "s3://bucket/x", "gs://bucket/x")
    ]
    assert modules == "[]"


def test_a_store_works_in_another_loop_and_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with gcs_emulator() as server:
        monkeypatch.setenv(server.address, server.url)
        store = asyncio.run(open_store(f"{server.root}/fork"))
        assert isinstance(asyncio.run(store.put("key", b"data", ABSENT)), Applied)
        child = os.fork()
        if child == 0:
            found = asyncio.run(store.get("key"))
            os._exit(0 if isinstance(found, Object) and found.data == b"data" else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert asyncio.run(store.get("key")) is not None
