"""The promises of every store while requests fail, get lost and land late."""

from __future__ import annotations

import pytest

from fray_coordinator.store.interface import (
    ABSENT,
    Applied,
    NameAbsent,
    Object,
    Rejected,
    Superseded,
    Version,
)
from fray_coordinator.store.store import Store
from tests.conformance.conftest import Target, every
from tests.support.faults import Fault, Plan, QuickClock
from tests.support.writers import create_counter, read_count, record, work

each_fault = pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())


@every()
@each_fault
async def test_a_write_that_suffers_once_is_done_once(target: Target, fault: Fault) -> None:
    plan = Plan()

    async with target.open(plan) as store:
        plan.then(fault)
        created = await created_record(store)
        await target.release()
        plan.then(fault)
        changed = await store.put("record", record(2, "two", ["one"]), created, op="two")
        await target.release()
        assert isinstance(changed, Applied)
        now = await found(store, "record")
        assert (now.data, now.version) == (record(2, "two", ["one"]), changed.version)
        plan.then(fault)
        assert await store.delete("record") == NameAbsent()
        await target.release()
        assert await store.get("record") is None
        plan.then(fault)
        assert isinstance(await store.put("blob", b"blob", ABSENT), Applied)
        await target.release()
        assert (await found(store, "blob")).data == b"blob"
    assert plan.suffered == [fault] * 4


@every()
async def test_a_write_that_was_applied_and_overwritten_is_superseded(target: Target) -> None:
    plan = Plan()

    async def overwrite() -> None:
        ours = await found(store, "record")
        assert isinstance(await store.put("record", record(3, "other", ["ours"]), ours.version, op="other"), Applied)

    async with target.open(plan, QuickClock(overwrite)) as store:
        created = await created_record(store)
        plan.then(Fault.APPLY_THEN_FAIL)
        outcome = await store.put("record", record(2, "ours", ["one"]), created, op="ours")
        assert isinstance(outcome, Superseded)
        assert outcome.current == await found(store, "record")


@every()
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLY_LATE], ids=lambda fault: fault.name.lower())
async def test_a_write_that_was_lost_and_overtaken_is_rejected_for_good(target: Target, fault: Fault) -> None:
    plan = Plan()

    async def overtake() -> None:
        assert isinstance(await store.put("record", record(3, "other", ["one"]), created, op="other"), Applied)

    async with target.open(plan, QuickClock(overtake)) as store:
        created = await created_record(store)
        plan.then(fault)
        outcome = await store.put("record", record(2, "ours", ["one"]), created, op="ours")
        assert isinstance(outcome, Rejected)
        await target.release()
        assert outcome.current == await found(store, "record")
        assert (await found(store, "record")).data == record(3, "other", ["one"])


@every()
async def test_a_late_change_does_not_bring_back_a_deleted_name(target: Target) -> None:
    plan = Plan()

    async with target.open(plan) as store:
        created = await created_record(store)
        plan.then(Fault.APPLY_LATE)
        assert isinstance(await store.put("record", record(2, "two"), created, op="two"), Applied)
        assert await store.delete("record") == NameAbsent()
        await target.release()
        assert await store.get("record") is None


@every()
async def test_a_late_create_does_bring_back_a_deleted_name(target: Target) -> None:
    """No precondition prevents this, so the protocol never deletes a name that may still be created."""
    plan = Plan()

    async with target.open(plan) as store:
        plan.then(Fault.APPLY_LATE)
        await created_record(store)
        assert await store.delete("record") == NameAbsent()
        await target.release()
        assert (await found(store, "record")).data == record(1, "one")


@every()
async def test_counter_is_exact_while_requests_fail(target: Target) -> None:
    plan = Plan(rate=0.3, held_back=1)

    async with target.open(plan) as store:
        await create_counter(store, "counter")
        await work(store, "increment", "counter", 8, ["one", "two", "three", "four"])
        await target.release()
        assert await read_count(store, "counter") == 32
    assert set(plan.suffered) == set(Fault)


@every(slow_on="moto")
async def test_each_name_has_one_creator_while_requests_fail(target: Target) -> None:
    plan = Plan(rate=0.3, held_back=1)

    async with target.open(plan) as store:
        won = await work(store, "create", "names", 8, ["one", "two", "three", "four"])
        await target.release()
        assert sorted(won) == [f"names/{number:03}" for number in range(8)]
    assert set(plan.suffered) == set(Fault)


async def created_record(store: Store) -> Version:
    outcome = await store.put("record", record(1, "one"), ABSENT, op="one")
    assert isinstance(outcome, Applied)
    return outcome.version


async def found(store: Store, key: str) -> Object:
    current = await store.get(key)
    assert current is not None
    return current
