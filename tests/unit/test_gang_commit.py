"""The end of a gang's attempt in the store: each exit is created once, and one write ends the attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.jobs import commit, stopping
from fray_coordinator.store.interface import ABSENT, ANY
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord, JobResult
from fray_layouts.work_keys import WorkKeys
from tests.support.running_gangs import leave_exit, running_gang


async def now(core: Core) -> JobRecord:
    stored = await core.records.read(JobKeys.key("g-1"), JobRecord)
    assert stored is not None
    return stored.record


async def entries(core: Core) -> list[str]:
    return [row.key for row in await core.store.list(PlacementKey.area) if row.key != PlacementKey.bell]


async def rings(core: Core) -> str:
    bell = await core.store.get(PlacementKey.bell)
    return bell.version if bell is not None else ""


async def test_the_last_replica_to_end_writes_the_success_of_all(core: Core) -> None:
    gang = await running_gang(core, 3)
    for replica in (2, 0, 1):
        own = await leave_exit(core, gang.record, replica)
        after = await commit.end_member(core, gang, f"a{replica}", [own])
        assert after.record.status == ("succeeded" if replica == 1 else "running")
    ended = await now(core)
    assert (ended.status, ended.result) == ("succeeded", JobResult(encoding="json", value=0))
    assert await entries(core) == []


async def test_all_may_end_at_once(core: Core) -> None:
    gang = await running_gang(core, 8)

    async def end(replica: int) -> None:
        own = await leave_exit(core, gang.record, replica)
        await commit.end_member(core, gang, f"a{replica}", [own])

    await asyncio.gather(*(end(replica) for replica in range(8)))
    assert (await now(core)).status == "succeeded"


async def test_when_one_fails_all_fail_and_it_is_counted_once(core: Core) -> None:
    gang = await running_gang(core, 8)
    before = await rings(core)

    async def fail(replica: int) -> None:
        own = await leave_exit(core, gang.record, replica, "exited")
        await commit.end_member(core, gang, f"a{replica}", [own])

    await asyncio.gather(*(fail(replica) for replica in range(8)))
    again = await now(core)
    assert (again.status, again.attempt, again.failures) == ("gathering", 2, 1)
    assert len(await entries(core)) == 1, "it waits for its next attempt"
    assert await rings(core) != before, "whoever gathers gangs is to look"


async def test_few_members_of_a_large_gang_write_that_one_has_failed(core: Core) -> None:
    gang = await running_gang(core, 100)
    failed = [await leave_exit(core, gang.record, replica, "exited") for replica in range(60)]
    real, writes = core.records.write, 0

    async def slow(*given: Any) -> Any:
        nonlocal writes
        writes += 1
        await asyncio.sleep(0.05)  # virtual: as on a bucket
        return await real(*given)

    object.__setattr__(core.records, "write", slow)
    await asyncio.gather(*(commit.end_member(core, gang, own.agent, [own]) for own in failed))
    assert (await now(core)).failures == 1
    assert writes <= 20


async def test_an_exit_is_created_once(core: Core) -> None:
    gang = await running_gang(core)
    await leave_exit(core, gang.record, 0, "exited")
    assert (await leave_exit(core, gang.record, 0)).exit.kind == "exited"


async def test_a_failure_that_meets_a_stop_ends_the_gang_once_all_have_ended(core: Core) -> None:
    """The stop comes between the failed member's look and its write. The other members have ended before."""
    gang = await running_gang(core)
    own = await leave_exit(core, gang.record, 0, "exited")
    await leave_exit(core, gang.record, 1)
    real = core.records.reread

    async def reread_then_stop(known: Stored[JobRecord], one_of_many: bool = False) -> Stored[JobRecord] | None:
        found = await real(known, one_of_many)
        await stopping.stop(core, "g-1", "enough")
        return found

    object.__setattr__(core.records, "reread", reread_then_stop)
    await commit.end_member(core, gang, "a0", [own])
    ended = await now(core)
    assert (ended.status, ended.attempt, ended.failures) == ("stopped", 1, 0)
    assert await entries(core) == []


@pytest.mark.parametrize("before", ["reread", "write"])
async def test_the_exits_are_listed_after_the_record_on_which_the_write_depends(core: Core, before: str) -> None:
    """The other replica ends, and a stop comes, after this member has listed the exits for the first time."""
    gang = await running_gang(core)
    own = await leave_exit(core, gang.record, 0, "exited")
    real, calls = getattr(core.records, before), 0

    async def others_first(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == {"reread": 2, "write": 1}[before]:
            await leave_exit(core, gang.record, 1)
            await stopping.stop(core, "g-1", "enough")
        return await real(*given)

    object.__setattr__(core.records, before, others_first)
    await commit.end_member(core, gang, "a0", [own])
    assert (await now(core)).status == "stopped"


async def test_exits_that_were_listed_before_the_record_changed_are_listed_again(core: Core) -> None:
    """The other replica ends, and a stop comes, between this member's list of exits and its write."""
    gang = await running_gang(core)
    own = await leave_exit(core, gang.record, 0, "exited")
    real, calls = core.store.list, 0

    async def others_after(*given: Any, **more: Any) -> Any:
        nonlocal calls
        rows, calls = await real(*given, **more), calls + 1
        if calls == 2:
            await leave_exit(core, gang.record, 1)
            await stopping.stop(core, "g-1", "enough")
        return rows

    object.__setattr__(core.store, "list", others_after)
    await commit.end_member(core, gang, "a0", [own])
    assert (await now(core)).status == "stopped"


async def test_the_burial_of_a_member_follows_its_stored_exit(core: Core) -> None:
    gang = await running_gang(core)
    await leave_exit(core, gang.record, 0)
    await leave_exit(core, gang.record, 1)
    ended = await commit.end_without(core, gang, "a1")
    assert ended is not None
    assert ended.record.status == "succeeded"


async def test_the_burial_of_a_member_that_ran_requeues_the_gang_once(core: Core) -> None:
    gang = await running_gang(core)
    await leave_exit(core, gang.record, 0)
    kept = await commit.end_without(core, gang, "a0")
    assert kept is not None
    assert kept.record.status == "running", "it had ended well: the others go on"
    for _ in range(2):
        await commit.end_without(core, gang, "a1")
    again = await now(core)
    assert (again.status, again.attempt, again.preemptions, again.agent_deaths) == ("gathering", 2, 1, 1)


async def test_a_stop_of_a_gang_that_gathers_takes_it_from_the_index(core: Core) -> None:
    gang = await running_gang(core)
    await core.records.write(gang.key, JobRecord, replace(gang.record, status="gathering"), gang)
    before = await rings(core)
    assert (await stopping.stop(core, "g-1", "enough")).status == "stopped"
    assert await entries(core) == []
    assert await rings(core) != before


async def test_the_exits_of_an_attempt_are_its_own(core: Core) -> None:
    gang = await running_gang(core)
    own = await leave_exit(core, gang.record, 0)
    await leave_exit(core, replace(gang.record, attempt=2), 1)
    assert [row.key for row in await core.store.list(WorkKeys.exits("g-1", 1))] == [WorkKeys.exit("g-1", 1, 0)]
    assert (await commit.end_member(core, gang, "a0", [own])).record.status == "running"


@pytest.mark.parametrize("damaged", [0, 1])
async def test_an_exit_that_cannot_be_read_is_that_of_a_replica_whose_host_failed(core: Core, damaged: int) -> None:
    gang = await running_gang(core)
    await core.store.put(WorkKeys.exit("g-1", 1, damaged), b"garbage", ABSENT)
    for replica in (0, 1):
        own = await leave_exit(core, gang.record, replica)
        await commit.end_member(core, gang, f"a{replica}", [own])
    again = await now(core)
    assert (again.status, again.attempt, again.failures, again.preemptions) == ("gathering", 2, 0, 1)
    past = again.history[-1]
    assert (past.agent, past.exit.kind) == (f"a{damaged}", "host-failed")
    assert f"replica {damaged} on h{damaged}: its exit cannot be read" in past.exit.message


async def test_an_exit_that_is_damaged_when_its_member_is_done_ends_the_attempt_with_the_last_one(core: Core) -> None:
    gang = await running_gang(core)
    own = await leave_exit(core, gang.record, 0)
    await commit.end_member(core, gang, "a0", [own])
    await core.store.put(WorkKeys.exit("g-1", 1, 0), b"garbage", ANY)
    own = await leave_exit(core, gang.record, 1)
    await commit.end_member(core, gang, "a1", [own])
    again = await now(core)
    assert (again.status, again.attempt, again.failures, again.preemptions) == ("gathering", 2, 0, 1)


async def test_a_stopped_gang_ends_though_an_exit_cannot_be_read(core: Core) -> None:
    gang = await running_gang(core)
    await stopping.stop(core, "g-1", "enough")
    await core.store.put(WorkKeys.exit("g-1", 1, 0), b"garbage", ABSENT)
    own = await leave_exit(core, gang.record, 1, "stopped")
    await commit.end_member(core, gang, "a1", [own])
    assert (await now(core)).status == "stopped"


async def test_the_burial_of_a_member_whose_exit_cannot_be_read_requeues_the_gang(core: Core) -> None:
    gang = await running_gang(core)
    await core.store.put(WorkKeys.exit("g-1", 1, 1), b"garbage", ABSENT)
    await commit.end_without(core, gang, "a1")
    again = await now(core)
    assert (again.status, again.attempt, again.failures, again.preemptions) == ("gathering", 2, 0, 1)
