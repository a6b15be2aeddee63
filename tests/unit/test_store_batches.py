"""Many small files in one call: every reported write is done, and odd paths are left to the ordinary verbs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fray_coordinator.clock import RandomSource, SystemClock
from fray_coordinator.store.file_batches import MAX_READ_BYTES
from fray_coordinator.store.interface import ABSENT, Applied
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> Store:
    opened = await open_store(str(tmp_path / "root"), SystemClock(), RandomSource(1))
    await opened.put("a/first", b"first", ABSENT)
    return opened


async def test_the_ordinary_verbs_find_objects_of_a_batch_and_the_other_way_round(store: Store) -> None:
    created = store.create_batch(["a/b/1", "a/first", "a/b/2", "c/3"], b"same")
    assert created.keys() == {"a/b/1", "a/b/2", "c/3"}, "a name that is taken stays as it is"
    for key, applied in created.items():
        found = await store.get(key)
        assert found is not None
        assert (found.data, found.version) == (b"same", applied.version)
        assert isinstance(await store.put(key, b"same", ABSENT), Applied), "the same bytes: it was this very create"
    read = store.read_batch(["a/b/1", "a/first", "a/none", "none/4"])
    assert {key: found.data for key, found in read.items()} == {"a/b/1": b"same", "a/first": b"first"}
    assert [await store.get(key) for key in read] == list(read.values())
    assert store.delete_batch(["a/b/1", "a/none", "none/4"]) == {"a/b/1", "a/none"}
    assert [row.key for row in await store.list("a/")] == ["a/b/2", "a/first"]


async def test_an_object_of_a_batch_with_equal_bytes_is_changed_alone(store: Store) -> None:
    store.create_batch(["a/1", "a/2"], b"same")
    await store.delete("a/1")
    await store.put("a/1", b"other", ABSENT)
    found = await store.get("a/2")
    assert found is not None
    assert found.data == b"same"


async def test_a_path_that_is_no_small_regular_file_is_not_read(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "a"
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "first")
    (folder / "folder").mkdir()
    (folder / "large").write_bytes(b"x" * (MAX_READ_BYTES + 1))
    (folder / "largest").write_bytes(b"x" * MAX_READ_BYTES)
    names = ["pipe", "link", "folder", "large", "largest"]
    assert store.read_batch([f"a/{name}" for name in names]).keys() == {"a/largest"}
    assert store.delete_batch(["a/folder"]) == set()


async def test_a_link_on_the_way_is_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    assert store.create_batch(["b/1"], b"x") == {}
    assert os.listdir(tmp_path / "elsewhere") == []


async def test_a_folder_that_was_replaced_is_opened_again(store: Store, tmp_path: Path) -> None:
    """Otherwise the data would be written where nobody looks."""
    store.create_batch(["a/1"], b"x")
    (tmp_path / "root" / "a").rename(tmp_path / "moved")
    assert store.create_batch(["a/2"], b"x").keys() == {"a/2"}
    assert await store.get("a/2") is not None
    assert sorted(os.listdir(tmp_path / "moved")) == ["1", "first"]


async def test_nothing_is_created_where_the_root_has_gone(store: Store, tmp_path: Path) -> None:
    store.create_batch(["a/1"], b"x")
    (tmp_path / "root").rename(tmp_path / "moved")
    assert store.create_batch(["a/2"], b"x") == {}
    assert not (tmp_path / "root").exists()


async def test_objects_that_cannot_be_created_as_a_batch_are_left_to_the_ordinary_verbs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        assert store.create_batch(["a/1"], b"x") == {}
    assert os.listdir(tmp_path / "root" / ".fray" / "tmp") == []
    assert store.create_batch(["a/1"], b"x").keys() == {"a/1"}


async def test_before_the_first_write_nothing_is_done_here(tmp_path: Path) -> None:
    """The first write shows whether this user may write here at all."""
    fresh = await open_store(str(tmp_path / "fresh"), SystemClock(), RandomSource(1))
    assert fresh.create_batch(["a/1"], b"x") == {}
    assert not (tmp_path / "fresh").exists()
