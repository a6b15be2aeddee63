"""fsck judges each object by itself: one for which a check raises is named, and hides no problem of another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.fsck import checker, queue_checks, snapshot
from fray_coordinator.fsck.report import AREAS, Area, Problem
from fray_coordinator.fsck.snapshot import Snapshot, take_snapshot
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import ANY
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey
from fray_layouts.object_keys import (
    AgentKeys,
    ArchiveKeys,
    BlobKeys,
    EndpointKey,
    JobKeys,
    NameKeys,
    PoolKeys,
    ReservationKeys,
)
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.records import AgentRecord
from fray_layouts.work_keys import WorkKeys
from tests.support.scripted_agents import join, launch
from tests.support.virtual import Cluster

QUEUE = QueueKeys.of("lab", "odd", 1)


class Bomb:
    """A record with an id and a key, of which nothing else can be read."""

    def __init__(self, key: str, name: str = "odd") -> None:
        self.key, self.id, self.record = key, name, self

    def __getattr__(self, field: str) -> Any:
        raise KeyError(f"unforeseen {field}")


async def with_problems(cluster: Cluster) -> tuple[Core, Snapshot]:
    """A cluster in which most checks find a problem, long after it arose."""
    core = await cluster.core()
    await join(cluster, "ill")
    await core.records.update(AgentKeys.key("ill"), AgentRecord, lambda a: replace(a, problem="no disk") if a else None)
    lost = await launch(core)
    await core.store.delete(entry_of(lost).key())
    for key in (
        WorkKeys.log("ghost", 1, 0, 1),
        entry_of(replace(lost, id="ghost")).key(),
        ChildKey("ghost", 1, "ghost-child").key(),
        PlacementKey("default", 0, 0.0, "ghost", "gang").key(),
        f"{BlobKeys.area}2001-01/{'0' * 64}",
        QUEUE.settings.replace("odd", "ghost"),
        "jobs/notes.txt",
    ):
        await core.store.put(key, b"{}", ANY)
    await core.store.put(ReservationKeys.key("spoilt"), b"[]", ANY)
    return core, await take_snapshot(core)


def told(seen: Snapshot) -> set[Problem]:
    return {suspicion.problem for suspicion in checker._suspected(seen)}


def _add_job(seen: Snapshot, key: str) -> None:
    seen.keys[key.partition("/")[0] + "/"].insert(0, key)
    seen.jobs = {"odd": Bomb(key), **seen.jobs}  # type: ignore[dict-item]  # it stands for a record
    seen.stored[key] = Bomb(key)  # type: ignore[assignment]


def _add_agent(seen: Snapshot, key: str) -> None:
    seen.agents = {"odd": Bomb(key), **seen.agents}  # type: ignore[dict-item]
    seen.stored[key] = Bomb(key)  # type: ignore[assignment]


def _add_drop(seen: Snapshot, key: str) -> None:
    seen.drops = {key: Bomb(key), **seen.drops}  # type: ignore[dict-item]


def _add_record(seen: Snapshot, key: str) -> None:
    seen.keys[key.partition("/")[0] + "/"].insert(0, key)
    seen.stored[key] = Bomb(key)  # type: ignore[assignment]


RECORDS: dict[str, Callable[[Snapshot, str], None]] = {
    JobKeys.key("odd"): _add_job,
    AgentKeys.key("odd"): _add_agent,
    "inbox/odd.json": _add_drop,
    EndpointKey("lab", "actor", "odd").key(): _add_record,
    PoolKeys.record("odd"): _add_record,
    NameKeys.key("lab", "queue", "odd"): _add_record,
}


@pytest.mark.parametrize("key", RECORDS)
async def test_a_record_for_which_checks_raise_is_named_and_hides_nothing(cluster: Cluster, key: str) -> None:
    _, seen = await with_problems(cluster)
    await cluster.clock.sleep(10_000.0)
    before = told(seen)
    assert len({problem.key for problem in before}) > 8
    RECORDS[key](seen, key)
    after = told(seen)
    failed = {problem.key for problem in after if "could not judge" in problem.what}
    depend = {f"{BlobKeys.area}2001-01/{'0' * 64}", ReservationKeys.key("spoilt")}  # a job may need them
    assert {key} <= failed <= {key, *depend}
    assert {problem.key for problem in before - after} <= {key, *depend}


PARSERS: list[tuple[Any, str, str]] = [
    (PendingKey, "parse", f"{PendingKey.area}default/odd"),
    (ChildKey, "parse", f"{ChildKey.area}odd"),
    (PlacementKey, "parse", f"{PlacementKey.area}default/odd"),
    (WorkKeys, "parse", WorkKeys.log("odd", 1, 0, 1)),
    (queue_checks, "owner_of", TaskKeys.of("lab", "odd", 1).pool),
    (QueueKeys, "around", QUEUE.settings),
]


@pytest.mark.parametrize(("owner", "function", "key"), PARSERS, ids=[key for _, _, key in PARSERS])
async def test_a_key_for_which_checks_raise_is_named_and_hides_nothing(
    cluster: Cluster, owner: Any, function: str, key: str
) -> None:
    _, seen = await with_problems(cluster)
    before = told(seen)
    seen.keys[key.partition("/")[0] + "/"].insert(0, key)
    real = getattr(owner, function)

    def parse(text: str) -> Any:
        if text == key:
            raise IndexError("unforeseen")
        return real(text)

    with mock.patch.object(owner, function, parse):
        after = told(seen)
    assert key in {problem.key for problem in after if "IndexError" in problem.what}
    assert before <= after
    assert "/" not in {problem.key for problem in after}


async def test_a_key_whose_kind_cannot_be_told_is_named_and_the_rest_of_its_area_is_read(cluster: Cluster) -> None:
    core, seen = await with_problems(cluster)
    odd = ArchiveKeys.key("odd")
    await core.store.put(odd, b"{}", ANY)

    def guarded(area: Area) -> Area:
        def kind(key: str) -> Any:
            if key == odd:
                raise OverflowError("unforeseen")
            return area.kind(key)

        return dataclasses.replace(area, kind=kind)

    with mock.patch.object(snapshot, "AREAS", [guarded(area) for area in AREAS]):
        again = await take_snapshot(core)
    assert "OverflowError" in again.unreadable[odd]
    assert again.keys == seen.keys
