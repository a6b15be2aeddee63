"""The promises of every store while nothing fails."""

from __future__ import annotations

import asyncio

import pytest

from fray_coordinator.clock import SystemClock
from fray_coordinator.errors import BadRecord
from fray_coordinator.store import gcs, s3
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    MAX_SPEC_BYTES,
    NOT_MODIFIED,
    Applied,
    Listed,
    NameAbsent,
    Object,
    Rejected,
    Superseded,
    Version,
)
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.store import Store
from tests.conformance.conftest import Target, every
from tests.support.writers import create_counter, read_count, record

ODD_NAMES = [
    "a b/c d", "100%/%2F", "plus+equals=amp&", "question?hash#", "quote'double\"", "back\\slash", "~tilde/.hidden",
    "semi;colon:at@", "<angle>{brace}[bracket]", "star*", "ünïcödé/日本語/🚀", "x" * 255, "trailing.", "comma,dollar$!",
]  # fmt: skip
ORDERED = ["a", "b!", "b-c", "b.json", "b/c", "b/c-d", "b/d/e", "b0", "bä", "b日", "b🚀", "c/1", "c/10", "c/2"]
"""In order of their UTF-8 bytes: `-` and `.` come before the slash, which comes before digits."""


async def applied(store: Store, key: str, data: bytes = b"x") -> Version:
    outcome = await store.put(key, data, ANY)
    assert isinstance(outcome, Applied)
    return outcome.version


@every()
async def test_counter_loses_no_increment(target: Target) -> None:
    async with target.open() as store:
        await create_counter(store, "counter")
        await asyncio.to_thread(target.race, "increment", "counter", target.times)
        assert await read_count(store, "counter") == 16 * target.times


@every(slow_on="moto")
def test_each_name_has_one_creator(target: Target) -> None:
    won = target.race("create", "names", target.times)
    assert sorted(won) == [f"names/{number:03}" for number in range(target.times)]


@every("conditional delete")
async def test_a_delete_and_a_change_exclude_each_other(target: Target) -> None:
    async with target.open() as store:
        for number in range(10):
            version = await applied(store, f"d/{number}", record(0, "created"))
            *changes, deleted = await asyncio.gather(
                *(store.put(f"d/{number}", record(1, op), version, op=op) for op in "abc"),
                store.delete(f"d/{number}", version),
            )
            assert sum(isinstance(change, Applied) for change in changes) == isinstance(deleted, Rejected)
            assert (await store.get(f"d/{number}") is None) == isinstance(deleted, NameAbsent)


@every("conditional delete")
async def test_a_stale_delete_is_rejected(target: Target) -> None:
    async with target.open() as store:
        old = await applied(store, "key", b"old")
        new = await applied(store, "key", b"new")
        outcome = await store.delete("key", old)
        assert isinstance(outcome, Rejected)
        assert outcome.current is not None
        assert outcome.current.data == b"new"
        assert await store.delete("key", new) == NameAbsent()
        assert await store.delete("key", new) == NameAbsent()
        assert await store.get("key") is None


@every("conditional delete")
async def test_withdraw_takes_only_the_version_that_was_read(target: Target) -> None:
    async with target.open() as store:
        old = await applied(store, "inbox/job.json", b"old")
        new = await applied(store, "inbox/job.json", b"new")
        assert isinstance(await store.withdraw("inbox/job.json", old, "aside/1"), Rejected)
        assert await store.withdraw("inbox/job.json", new, "aside/1") == NameAbsent()
        assert await store.get("inbox/job.json") is None


@every()
async def test_outcomes_of_writes(target: Target) -> None:
    async with target.open() as store:
        first = await store.put("key", record(1, "one"), ABSENT, op="one")
        assert isinstance(first, Applied)
        second = await store.put("key", record(2, "two", ["one"]), first.version, op="two")
        assert isinstance(second, Applied)
        assert second.version != first.version
        assert isinstance(await store.put("key", record(3, "three"), first.version, op="three"), Rejected)
        assert isinstance(await store.put("key", record(3, "three"), ABSENT, op="three"), Rejected)
        again = await store.put("key", record(1, "one"), ABSENT, op="one")
        assert isinstance(again, Superseded)
        assert again.current is not None
        assert again.current.version == second.version
        assert await store.put("gone", record(1, "four"), first.version, op="four") == Rejected(None)


@every()
async def test_immutable_objects_are_compared(target: Target) -> None:
    async with target.open() as store:
        first = await store.put("blob", b"\0\xff\r\n--", ABSENT)
        again = await store.put("blob", b"\0\xff\r\n--", ABSENT)
        assert isinstance(first, Applied)
        assert isinstance(again, Applied)
        assert first.version == again.version
        assert isinstance(await store.put("blob", b"other", ABSENT), Rejected)
        assert isinstance(await store.put("empty", b"", ABSENT), Applied)
        empty = await store.get("empty")
        assert empty is not None
        assert empty.data == b""


@every("not modified")
async def test_an_unchanged_object_is_not_sent_again(target: Target) -> None:
    async with target.open() as store:
        old = await applied(store, "key", b"old")
        assert await store.get_if_changed("key", old) is NOT_MODIFIED
        await applied(store, "key", b"new")
        changed = await store.get_if_changed("key", old)
        assert isinstance(changed, Object)
        assert changed.data == b"new"
        assert await store.get_if_changed("key", changed.version) is NOT_MODIFIED
        await store.delete("key")
        assert await store.get_if_changed("key", changed.version) is None


@every("order")
async def test_listing_is_ordered(target: Target) -> None:
    async with target.open() as store:
        for key in reversed(ORDERED[1:]):
            await applied(store, key)
        assert await keys(store, "") == ORDERED[1:]
        assert await keys(store, "b/") == ["b/c", "b/c-d", "b/d/e"]
        assert await keys(store, "b/c") == ["b/c", "b/c-d"]
        assert await keys(store, "b", after="b/c") == ["b/c-d", "b/d/e", "b0", "bä", "b日", "b🚀"]
        assert await keys(store, "", after="b/d") == ["b/d/e", "b0", "bä", "b日", "b🚀", "c/1", "c/10", "c/2"]
        assert await keys(store, "b/", after="a") == ["b/c", "b/c-d", "b/d/e"]
        assert await keys(store, "c/", after="c/1", limit=1) == ["c/10"]
        assert await keys(store, "c/", after="c/2") == []
        assert await keys(store, "nothing/") == []


async def keys(store: Store, prefix: str, after: str | None = None, limit: int | None = None) -> list[str]:
    return [row.key for row in await store.list(prefix, after, limit)]


@every()
async def test_long_listings_come_in_pages(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (gcs, s3):
        monkeypatch.setattr(kind, "ROWS_PER_REQUEST", 50)
    many = 103
    names = [f"page/{number:05}" for number in range(many)]

    async with target.open() as store:
        for start in range(0, len(names), 50):
            await asyncio.gather(*(applied(store, name) for name in names[start : start + 50]))
        assert await keys(store, "page/") == names
        assert await keys(store, "page/", limit=many - 2) == names[:-2]
        assert await keys(store, "page/", after=names[0], limit=many - 3) == names[1:-2]
        assert await keys(store, "page/", after=names[-3]) == names[-2:]


@every()
async def test_listed_versions_are_those_of_the_objects(target: Target) -> None:
    async with target.open() as store:
        await store.learn_clock()
        version = await applied(store, "key")
        found = await store.get("key")
        assert found is not None
        (row,) = await store.list("key", versions=True)
        assert row.version == found.version == version
        assert row.updated == pytest.approx(found.updated, abs=1)
        assert found.updated == pytest.approx(store.now(), abs=5)
        assert await store.list("key") == [Listed("key")]


@every()
async def test_a_write_is_visible_at_once(target: Target) -> None:
    async with target.open() as store:
        for number in range(10):
            await applied(store, "key", b"%d" % number)
            found = await store.get("key")
            assert found is not None
            assert found.data == b"%d" % number
            assert await keys(store, "key") == ["key"]
            await store.delete("key")
            assert await store.get("key") is None
            assert await keys(store, "key") == []


@every()
async def test_large_values(target: Target) -> None:
    big = bytes(range(256)) * (32 * 1024 * 4)

    async with target.open() as store:
        assert isinstance(await store.put("big", big, ABSENT), Applied)
        assert isinstance(await store.put("big", big, ABSENT), Applied)
        found = await store.get("big")
        assert found is not None
        assert found.data == big
        assert await store.delete("big", found.version) == NameAbsent()


@every()
async def test_an_object_that_is_too_large_for_its_name_is_not_read(target: Target) -> None:
    """Another client may have stored it. Nothing else is harmed."""

    async with target.open() as store:
        backend = open_backend(target.root, SystemClock())
        try:
            await backend.put("inbox/large.json", b" " * (MAX_SPEC_BYTES + 1), ANY)
        finally:
            await backend.close()
        await applied(store, "inbox/small.json", b"{}")
        for _ in range(3):
            with pytest.raises(BadRecord, match=rf"inbox/large.json.* has more than the {MAX_SPEC_BYTES} bytes"):
                await store.get("inbox/large.json")
            assert await store.get("inbox/small.json") is not None
        assert await keys(store, "inbox/") == ["inbox/large.json", "inbox/small.json"]
        assert await store.delete("inbox/large.json") == NameAbsent()


@every("odd names")
async def test_odd_names(target: Target) -> None:
    async with target.open() as store:
        for name in ODD_NAMES:
            await applied(store, name, name.encode())
        assert sorted(await keys(store, "")) == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            found = await store.get(name)
            assert found is not None
            assert found.data == name.encode()
            assert await keys(store, name) == [name]
            assert await store.delete(name, found.version) == NameAbsent()
        assert await keys(store, "") == []
