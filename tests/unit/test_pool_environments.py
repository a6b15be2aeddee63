"""The environments that a pool names: who may add which, and which objects are kept for them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs.pools import add_environment, clear_environments, pool_environments
from fray_coordinator.jobs.submission import put_blob
from fray_coordinator.protocol.environments import MAX_POOL_ENVIRONMENTS
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import PoolKeys
from fray_layouts.spec import EnvironmentSpec, WorkspaceSpec
from tests.support.virtual import Cluster

MONTHS = 70 * 86400.0


def packages(*names: str) -> EnvironmentSpec:
    return EnvironmentSpec(pip_packages=list(names))


def in_month(month: str, digit: int) -> EnvironmentSpec:
    return EnvironmentSpec(workspace=WorkspaceSpec(blob=f"blobs/{month}/{digit:064x}", dependencies="uv.lock"))


async def test_concurrent_additions_are_all_stored_and_equal_environments_once(cluster: Cluster) -> None:
    people = [await cluster.core() for _ in range(4)]
    await asyncio.gather(
        *(add_environment(user, "default", packages(str(number // 2))) for number, user in enumerate(people))
    )
    named = await pool_environments(people[0], "default")
    assert sorted(named, key=lambda each: each.pip_packages) == [packages("0"), packages("1")]
    assert await pool_environments(people[0], "other") == []
    await clear_environments(people[0], "default")
    assert await pool_environments(people[0], "default") == []


async def test_a_workspace_that_was_stored_in_another_month_is_the_same(core: Core) -> None:
    for environment in (in_month("2026-01", 1), in_month("2026-02", 1), in_month("2026-02", 2)):
        await add_environment(core, "default", environment)
    assert await pool_environments(core, "default") == [in_month("2026-01", 1), in_month("2026-02", 2)]


@pytest.mark.parametrize("field", ["env_vars", "secret_env_vars"])
async def test_variables_are_refused_and_their_values_not_told(core: Core, field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"environment\.{field}.*TOKEN") as refused:
        await add_environment(core, "default", replace(EnvironmentSpec(), **{field: {"TOKEN": "its-value"}}))
    assert "its-value" not in str(refused.value)
    assert await pool_environments(core, "default") == []


async def test_a_pool_names_so_many_and_no_more(core: Core) -> None:
    for number in range(MAX_POOL_ENVIRONMENTS):
        await add_environment(core, "default", packages(str(number)))
    await add_environment(core, "default", packages("0"))
    with pytest.raises(InvalidInput, match="at most 20 environments"):
        await add_environment(core, "default", packages("one more"))


@pytest.mark.parametrize("act", [pool_environments, clear_environments])
async def test_invalid_names_of_pools_are_refused(core: Core, act: object) -> None:
    with pytest.raises(InvalidInput, match="pool"):
        await act(core, "../x")  # type: ignore[operator]


async def test_a_workspace_that_a_pool_names_stays_until_it_is_cleared(cluster: Cluster) -> None:
    user = await cluster.core()
    blob = await put_blob(user, b"archive")
    await add_environment(user, "default", EnvironmentSpec(workspace=WorkspaceSpec(blob=blob)))
    coordinator = Reconciler(user, "p")
    await cluster.clock.sleep(MONTHS + 31 * 86400.0)
    await coordinator.repair.run({})
    await fsck.repair(user)
    assert await fsck.check(user) == []
    assert cluster.keys("blobs/") == [blob]
    await clear_environments(user, "default")
    await cluster.clock.sleep(MONTHS)
    await coordinator.repair.run({})
    assert cluster.keys("blobs/") == []


async def test_no_blob_goes_while_a_pools_record_cannot_be_read_and_fsck_names_it(cluster: Cluster) -> None:
    user, record = await cluster.core(), PoolKeys.record("default")
    blob = await put_blob(user, b"archive")
    await user.store.put(record, b"odd", ANY)
    coordinator = Reconciler(user, "p")
    await cluster.clock.sleep(MONTHS + 31 * 86400.0)
    await coordinator.repair.run({})
    await fsck.repair(user)
    assert cluster.keys("blobs/") == [blob]
    assert record in coordinator.repair.problems
    [problem] = await fsck.check(user)
    assert problem.key == record
    assert "build nothing before they claim" in problem.what
    await user.store.delete(record)
    await coordinator.repair.run({})
    assert (cluster.keys("blobs/"), coordinator.repair.problems) == ([], {})
