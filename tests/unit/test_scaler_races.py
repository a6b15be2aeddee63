"""Runs of a scaler that another one overtakes: between two of its writes, or while it is frozen before a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from msgspec.structs import replace

from fray_agents.provisioning.pool_run import CALL_TIMEOUT
from fray_agents.provisioning.provider import MachineRequest
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.protocol.scaling.machines import CALL_SECONDS, asked
from fray_coordinator.store.interface import ABSENT, Applied, Expectation
from fray_layouts.object_keys import MachineKeys
from fray_layouts.records import MachineRecord
from fray_layouts.states import MachineState
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster, VirtualClock
from tests.unit.test_scaler import POOL, SCOPE, machines, with_jobs, with_pool


def intercept(cluster: Cluster, act: Callable[[MachineRecord], Awaitable[None]], when: MachineState) -> None:
    """Call `act` before the last participant's first write of a machine in this state."""
    connection, put = cluster.connections[-1], cluster.connections[-1].put

    async def watched(key: str, data: bytes, expect: Expectation) -> Applied:
        if MachineKeys.parse(key) and (record := msgspec.json.decode(data, type=MachineRecord)).state == when:
            connection.put = put  # type: ignore[method-assign]
            await act(record)
        return await put(key, data, expect)

    connection.put = watched  # type: ignore[method-assign]


async def test_a_scaler_that_wakes_long_after_its_write_makes_no_call(cluster: Cluster) -> None:
    """Others have acted on that write, and rely on the call being over by now."""
    provider = MemoryProvider()
    core = await cluster.core()
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    intercept(cluster, lambda _: asyncio.sleep(CALL_SECONDS - CALL_TIMEOUT + 1), MachineState.CREATING)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    assert provider.asked == []
    await asyncio.sleep(60)
    await scaler.run_once()
    assert provider.asked == [("create", "")]


async def test_a_scaler_that_was_suspended_with_its_host_makes_no_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock of such a host is corrected only later."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)

    async def suspended(record: MachineRecord) -> None:
        wall = cluster.clock.wall()
        monkeypatch.setattr(VirtualClock, "wall", lambda clock: wall)
        await asyncio.sleep(CALL_SECONDS)

    intercept(cluster, suspended, MachineState.CREATING)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert provider.asked == []


async def test_an_intent_of_another_counts_though_it_cannot_be_read(cluster: Cluster) -> None:
    other, core, provider = await cluster.core(), await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)

    async def damaged(_: MachineRecord) -> None:
        await other.store.put(MachineKeys.key(POOL, "m-other"), b"{", ABSENT)

    intercept(cluster, damaged, MachineState.WANTED)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert provider.asked == []


def giving_up(core: Core) -> Callable[[MachineRecord], Awaitable[None]]:
    """Another scaler, which gives a machine up."""

    async def gives_up(record: MachineRecord) -> None:
        key = MachineKeys.key(POOL, record.name)
        await core.records.change(key, MachineRecord, lambda now: replace(now, state="deleting"))

    return gives_up


async def test_a_machine_that_another_gives_up_meanwhile_is_not_asked_for(cluster: Cluster) -> None:
    other, core, provider = await cluster.core(), await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)

    intercept(cluster, giving_up(other), MachineState.CREATING)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert [verb for verb, _ in provider.asked] == ["delete"]


async def test_a_request_of_which_another_gives_up_one_machine_meanwhile_is_not_made(cluster: Cluster) -> None:
    other, core, provider = await cluster.core(), await cluster.core(), MemoryProvider()
    await with_pool(core, max=2)
    await with_jobs(core, 2)
    intent = MachineRecord(pool=POOL, name="", provider="command", wanted_at=core.now(), batch="m1", batch_size=2)
    for name in ("m1", "m2"):
        await core.records.put(MachineKeys.key(POOL, name), replace(intent, name=name), ABSENT)

    intercept(cluster, giving_up(other), MachineState.CREATING)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert [verb for verb, _ in provider.asked] == ["delete"]


async def test_the_reply_to_a_request_is_stored_though_another_scaler_changes_the_record_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, core, provider = await cluster.core(), await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    create = provider.create

    async def answered_late(request: MachineRequest) -> str:
        operation = await create(request)
        key = MachineKeys.key(POOL, request.names[0])
        await other.records.change(key, MachineRecord, lambda now: replace(now, state="deleting"))
        return operation

    monkeypatch.setattr(MemoryProvider, "create", lambda _, request: answered_late(request))
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    (machine,) = await machines(cluster, core)
    assert (machine.state, machine.operation, machine.created_at) == ("deleting", "operation", core.now())


async def test_a_scaler_that_is_too_slow_to_give_up_one_intent_gives_up_the_next(cluster: Cluster) -> None:
    """Two scalers want a machine each, and the pool may have one. The later intent, which is to go, is asked for."""
    provider, name = MemoryProvider(), "z"
    other, core = await cluster.core(), await cluster.core()
    key = MachineKeys.key(POOL, name)
    await with_pool(core, max=1)
    await with_jobs(core, 8)

    async def want(mine: MachineRecord) -> None:
        await other.records.put(key, replace(mine, name=name, batch=name), ABSENT)
        intercept(cluster, ask, MachineState.GONE)

    async def ask(given_up: MachineRecord) -> None:
        assert given_up.name == name
        intent = await other.records.read(key, MachineRecord)
        assert intent is not None
        await other.records.write(key, MachineRecord, asked(intent.record, other.now()), intent)

    intercept(cluster, want, MachineState.WANTED)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert provider.asked == []
    assert [m.state for m in await machines(cluster, core)] == ["gone", "creating"]
