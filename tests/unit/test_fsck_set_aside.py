"""fsck names unreadable objects, and its repair sets those aside on which nothing that runs depends."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.store import Store
from fray_layouts import codec
from fray_layouts.object_keys import AgentKeys, AsideKeys, EndpointKey, JobKeys, PoolKeys, ReservationKeys
from fray_layouts.records import Holding
from fray_layouts.work_keys import WorkKeys
from tests.support.damage import a_job, a_job_running_under, a_succeeded_job, an_agent, everything, rewrite
from tests.support.virtual import Cluster

GANG = {"id": "g", "status": "gathering", "spec": {"name": "g", "entrypoint": {"command": ["x"]}, "replicas": 2}}
PLACED = {"round": 1, "members": [{"agent": "a", "bundles": [7]}]}
ODD: dict[str, tuple[str, dict[str, Any], str]] = {
    "job": (JobKeys.key("g"), {**GANG, "placement": PLACED}, "placement.members[0].bundles: 7"),
    "reservation": (ReservationKeys.key("r"), {"id": "r", "kind": "reservation", "low": 10**12}, "low: 1000000000000"),
    "plan": (PoolKeys.plan("default"), {"owners": {"a": ["agents/b.json"]}}, "owners.a: 'agents/b.json'"),
    "endpoint": (EndpointKey("n", "x", "id").key(), {}, "EndpointRecord"),
}


@pytest.fixture
async def core(cluster: Cluster) -> Core:
    return await cluster.core()


@pytest.mark.parametrize("what", ODD)
async def test_an_unreadable_object_is_named_and_set_aside(core: Core, what: str) -> None:
    key, record, words = ODD[what]
    body = json.dumps(record).encode()
    await core.store.put(key, body, ANY)
    await assert_set_aside(core, key, body, words)


async def test_an_unreadable_exit_of_a_gang_that_has_ended_is_set_aside(core: Core) -> None:
    key = WorkKeys.exit((await a_succeeded_job(core)).id, 1, 0)
    await core.store.put(key, b"{}", ANY)
    await assert_set_aside(core, key, b"{}", "ReplicaExit")


async def assert_set_aside(core: Core, key: str, body: bytes, words: str) -> None:
    [named] = [problem for problem in await fsck.check(core) if problem.key == key]
    assert words in named.what
    assert "`fray fsck --repair` sets it aside" in named.remedy
    [moved] = await fsck.repair(core)
    assert (moved.key, AsideKeys.parse(moved.to)) == (key, key)
    assert await core.store.get(key) is None
    assert key not in {problem.key for problem in await fsck.check(core)}
    kept = await core.store.get(moved.to)
    assert kept is not None
    assert kept.data == body


async def in_use_by_an_agent(core: Core) -> str:
    job = await a_job_running_under(core, "a")
    await an_agent(core, "a", holdings={job.id: Holding(attempt=1, phase="running")})
    return JobKeys.key(job.id)


async def perhaps_in_use_by_an_unreadable_agent(core: Core) -> str:
    await core.store.put(AgentKeys.key("odd"), b"[]", ANY)
    return JobKeys.key((await a_job(core)).id)


async def a_reservation_with_a_job(core: Core) -> str:
    await rewrite(core, await a_job(core, pool="default"), status="haunted", spec=(await a_job(core, pool="~r")).spec)
    return ReservationKeys.key("r")


async def an_exit_of_a_gang_that_runs(core: Core) -> str:
    gang = await rewrite(core, await a_job(core, replicas=2), status="running")
    return WorkKeys.exit(gang.id, 1, 0)


IN_USE = [
    in_use_by_an_agent,
    perhaps_in_use_by_an_unreadable_agent,
    a_reservation_with_a_job,
    an_exit_of_a_gang_that_runs,
]


@pytest.mark.parametrize("make", IN_USE, ids=lambda make: make.__name__)
async def test_an_unreadable_object_that_something_may_depend_on_stays(core: Core, make: Any) -> None:
    key = await make(core)
    await core.store.put(key, b"[]", ANY)
    assert await fsck.repair(core) == []
    [named] = [problem for problem in await fsck.check(core) if problem.key == key]
    assert "--repair" not in named.remedy
    assert (await everything(core))[key] is not None


async def test_a_job_that_was_set_aside_can_be_moved_back_to_its_data(core: Core) -> None:
    job = await a_succeeded_job(core)
    key, log = JobKeys.key(job.id), WorkKeys.log(job.id, 1, 0, 1)
    await core.store.put(log, b"{}", ANY)
    await core.store.put(key, b"[]", ANY)
    [moved] = await fsck.repair(core)
    await core.clock.sleep(7200.0)
    assert await fsck.repair(core) == []
    assert (await everything(core)).keys() >= {moved.to, log}
    await core.store.put(key, codec.encode(job), ANY)
    assert await fsck.check(core) == []


async def test_an_interrupted_move_leaves_the_object_where_it_was(core: Core) -> None:
    key, record, _ = ODD["reservation"]
    await core.store.put(key, json.dumps(record).encode(), ANY)
    with mock.patch.object(Store, "delete", side_effect=KeyError):
        assert await fsck.repair(core) == []
    assert await core.store.get(key) is not None
    assert len(await fsck.repair(core)) == 1
    assert await core.store.get(key) is None


async def test_an_object_that_was_mended_meanwhile_stays(core: Core) -> None:
    key, record, _ = ODD["reservation"]
    await core.store.put(key, json.dumps(record).encode(), ANY)
    good = json.dumps({**record, "low": 0}).encode()
    real = fsck.checker._confirmed

    async def then_mended(core: Core) -> Any:
        found = list(await real(core))
        await core.store.put(key, good, ANY)
        return iter(found)

    with mock.patch.object(fsck.checker, "_confirmed", then_mended):
        assert await fsck.repair(core) == []
    found = await core.store.get(key)
    assert found is not None
    assert found.data == good
