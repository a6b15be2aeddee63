"""The promises of every provider of machines, checked on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fray_agents.provisioning.provider import MachineRequest, Provider
from fray_agents.provisioning.provider_opening import open_provider
from fray_coordinator.protocol.scaling.view import ListedState
from tests.support.provider_worlds import CLUSTER_ID, POOL, WORLDS, ProviderWorld, core_of
from tests.support.waiting import eventually

FIRST, SECOND, THIRD = "m0aaaaaaaaaaaaa1", "m0aaaaaaaaaaaaa2", "m0aaaaaaaaaaaaa3"


PROGRAMS = ("kubernetes", "slurm")
"""Providers whose calls are programs, each of which costs the start of a process."""


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name in PROGRAMS else []) for name in WORLDS])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderWorld]:
    with WORLDS[request.param](tmp_path, monkeypatch) as made:
        yield made


@asynccontextmanager
async def opened(world: ProviderWorld, pool: str = POOL, cluster_id: str = CLUSTER_ID) -> AsyncIterator[Provider]:
    provider = await open_provider(await core_of(cluster_id), pool, world.spec)
    try:
        yield provider
    finally:
        await provider.close()


def asked(world: ProviderWorld, *names: str, pool: str = POOL) -> MachineRequest:
    return MachineRequest(pool=pool, names=names, zone=world.zone, spec=world.spec, root="memory://root")


async def states(provider: Provider) -> dict[str, ListedState]:
    found = await provider.list()
    assert len({machine.name for machine in found}) == len(found)
    return {machine.name: machine.state for machine in found}


async def become(provider: Provider, wanted: dict[str, ListedState]) -> None:
    async def are_so() -> bool:
        for stranger in await provider.list():
            if stranger.name not in (FIRST, SECOND, THIRD):
                assert stranger.copy_of in (FIRST, SECOND, THIRD)  # so a look deletes it
                await provider.delete(stranger.name, stranger.zone)
        return await states(provider) == wanted

    await eventually(are_so, 60.0)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
async def test_a_machine_is_listed_from_its_request_on_until_it_is_removed(world: ProviderWorld) -> None:
    async with opened(world) as provider:
        assert await states(provider) == {}
        await provider.create(asked(world, FIRST))
        assert set(await states(provider)) == {FIRST}
        await become(provider, {FIRST: ListedState.READY})
        [listed] = await provider.list()
        assert listed.pool == POOL
        await provider.delete(FIRST, listed.zone)
        await become(provider, {})


async def test_a_request_that_is_made_again_makes_nothing_new(world: ProviderWorld) -> None:
    async with opened(world) as provider, opened(world) as other:
        await asyncio.gather(*(each.create(asked(world, FIRST)) for each in (provider, other, provider)))
        await become(provider, {FIRST: ListedState.READY})
        await other.create(asked(world, FIRST))
        assert await states(other) == {FIRST: ListedState.READY}
        await provider.delete(FIRST, world.zone)
        await become(other, {})


async def test_a_machine_is_removed_as_often_as_one_likes(world: ProviderWorld) -> None:
    async with opened(world) as provider:
        await provider.delete(FIRST, world.zone)
        await provider.create(asked(world, FIRST))
        await provider.delete(FIRST, world.zone)
        await provider.delete(FIRST, world.zone)
        await become(provider, {})
        await provider.delete(FIRST, world.zone)


async def test_pools_and_clusters_do_not_see_each_others_machines(world: ProviderWorld) -> None:
    async with opened(world) as provider, opened(world, "other") as pool, opened(world, cluster_id="fedcba") as cluster:
        await provider.create(asked(world, FIRST))
        await pool.create(asked(world, FIRST, pool="other"))
        assert await states(cluster) == {}
        await cluster.delete(FIRST, world.zone)
        await pool.delete(FIRST, world.zone)
        await become(pool, {})
        await become(provider, {FIRST: ListedState.READY})


async def test_one_of_a_request_for_several_goes_alone(world: ProviderWorld) -> None:
    async with opened(world) as provider:
        names = (FIRST, SECOND, THIRD)
        await provider.create(asked(world, *names))
        await become(provider, dict.fromkeys(names, ListedState.READY))
        await provider.delete(SECOND, world.zone, batch=FIRST)
        await become(provider, {FIRST: ListedState.READY, THIRD: ListedState.READY})


async def test_a_machine_that_was_taken_away_is_lost_until_it_is_removed(world: ProviderWorld) -> None:
    async with opened(world) as provider:
        await provider.create(asked(world, FIRST))
        await become(provider, {FIRST: ListedState.READY})
        world.lose(FIRST)
        await become(provider, {FIRST: ListedState.LOST})
        await provider.delete(FIRST, world.zone)
        await become(provider, {})


async def test_a_check_makes_nothing_and_finds_nothing_wrong(world: ProviderWorld) -> None:
    async with opened(world) as provider:
        assert await provider.check() == []
        assert await states(provider) == {}
