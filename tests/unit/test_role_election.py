"""A role's election: the work of its holder under the lease, and what happens to it when the lease is lost."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, StoreUnavailable
from fray_coordinator.role_election import RoleElection
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.memory import MemoryContents
from fray_layouts.object_keys import CoordinatorKeys
from fray_layouts.records import ScalerRecord
from tests.support.virtual import Cluster


async def won(core: Core) -> RoleElection[ScalerRecord]:
    role = RoleElection(core, CoordinatorKeys.scaler, ScalerRecord, "one", lambda lease: core.settings.pass_interval)
    await role.read()
    assert await role.take(replace(role.record, holder="one"))
    return role


class Work:
    """Endless work that takes a second to clean up."""

    closed = False

    async def run(self) -> bool:
        try:
            return await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            self.closed = True


async def test_the_work_of_a_role_that_is_lost_has_ended_before_anything_else_begins(cluster: Cluster) -> None:
    core, work = await cluster.core(), Work()
    role = await won(core)
    await core.records.change(CoordinatorKeys.scaler, ScalerRecord, lambda now: replace(now, holder="two"))
    assert await role.renew_during(work.run(), lambda now: now) is None
    assert work.closed


async def test_the_work_of_a_role_that_cannot_be_renewed_has_ended_too(cluster: Cluster) -> None:
    core, work = await cluster.core(), Work()
    role = await won(core)

    def fails(now: ScalerRecord) -> ScalerRecord:
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreError):
        await role.renew_during(work.run(), fails)
    assert work.closed


async def test_another_holder_with_as_much_progress_is_somebody_who_lives(cluster: Cluster) -> None:
    core = await cluster.core()
    await won(core)
    watcher = RoleElection(
        core, CoordinatorKeys.scaler, ScalerRecord, "watcher", lambda lease: core.settings.pass_interval
    )
    await watcher.read()
    for holder in ("two", "three", "four", "five", "six"):
        now = await core.records.read(CoordinatorKeys.scaler, ScalerRecord)
        assert now is not None
        await core.records.write(CoordinatorKeys.scaler, ScalerRecord, replace(now.record, holder=holder), now)
        await cluster.clock.sleep(core.settings.pass_interval)
        await watcher.read()
        assert watcher.age == 0.0
    assert not watcher.may_take()


async def test_a_role_whose_record_is_spoilt_just_before_it_is_taken_is_not_taken(cluster: Cluster) -> None:
    core = await cluster.core()
    role = RoleElection(core, CoordinatorKeys.scaler, ScalerRecord, "one", lambda lease: core.settings.pass_interval)
    await role.read()
    await core.store.put(CoordinatorKeys.scaler, b"{", ANY)
    assert not await role.take(replace(role.record, holder="one"))
    assert not role.may_take(), "it has to age, as that of somebody who lives"


async def test_a_role_taken_in_another_cluster_confirms_nothing(cluster: Cluster) -> None:
    core = await cluster.core()
    role = RoleElection(core, CoordinatorKeys.scaler, ScalerRecord, "one", lambda lease: core.settings.pass_interval)
    await role.read()
    cluster.replace(MemoryContents())
    with pytest.raises(StoreUnavailable, match="no cluster at"):
        await role.take(replace(role.record, holder="one"))
