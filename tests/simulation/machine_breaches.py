"""Breaks each invariant of machines by hand."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fray_agents.provisioning.provider import MachineRequest
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_coordinator.store.interface import Object
from fray_layouts import codec
from fray_layouts.object_keys import MachineKeys
from fray_layouts.records import MachineRecord
from tests.simulation.clocks import EPOCH
from tests.simulation.loop import Participant
from tests.simulation.machine_plan import SINGLES, ZONES
from tests.simulation.machine_provider import SimulatedMachine, SimulatedProvider
from tests.simulation.machines import MachineWorld

NAME = "m1"


def with_machine(state: str, there: bool = True) -> tuple[MachineWorld, SimulatedProvider]:
    """A world with a machine of this record, which exists or not."""
    world = MachineWorld(1)
    provider = world.providers[SINGLES]
    world.records[NAME] = MachineRecord(pool=SINGLES, name=NAME, state=state, zone=ZONES[0], hourly_cost=3600.0)
    if there:
        provider.machines[NAME] = made(NAME)
    return world, provider


def made(name: str) -> SimulatedMachine:
    return SimulatedMachine(ListedMachine(SINGLES, name, ZONES[0], ListedState.READY), 0.0)


def raised(world: MachineWorld) -> None:
    assert world.loop.broken is not None
    raise world.loop.broken


def one_that_is_there_is_gone() -> None:
    world, _ = with_machine("up")
    gone = MachineRecord(pool=SINGLES, name=NAME, state="gone", zone=ZONES[0])
    after = Object(codec.encode(gone, {}), "1", 0.0)
    world._on_write(MachineKeys.key(SINGLES, NAME), None, after, Participant("here"))
    raised(world)


def one_is_asked_for_by_nothing() -> None:
    world, provider = with_machine("wanted", there=False)
    world.asks_for(provider, MachineRequest(SINGLES, [NAME], ZONES[0], world.specs[SINGLES], "memory://sim"))
    raised(world)


def one_that_is_wanted_is_deleted() -> None:
    world, provider = with_machine("up")
    world.asks_to_delete(provider, NAME)
    raised(world)


def one_goes_without_a_record() -> None:
    world, provider = with_machine("stray")
    world.asks_to_delete(provider, NAME)
    raised(world)


def one_comes_that_was_given_up() -> None:
    world, provider = with_machine("gone")
    provider.asked[NAME] = 1
    world.made(provider, provider.machines[NAME])
    raised(world)


def there_is_one_too_many() -> None:
    world, provider = with_machine("up")
    for number in range(world.specs[SINGLES].max):
        name = f"more{number}"
        provider.machines[name] = made(name)
        world.records[name] = MachineRecord(pool=SINGLES, name=name, state="up", zone=ZONES[0])
    world.made(provider, provider.machines[NAME])
    raised(world)


def one_stays_without_a_record() -> None:
    world, _ = with_machine("gone")
    for _ in range(100):
        world._check_unrecorded()
    raised(world)


def a_reply_is_forgotten() -> None:
    world, provider = with_machine("creating")
    world.stormy = False
    provider.replies[NAME] = -100.0, "operation"
    world._check_replies()
    raised(world)


def a_job_fails() -> None:
    world, _ = with_machine("up")
    world.jobs, world.statuses = ["j"], {"j": "failed"}
    world.settle()


def one_is_left() -> None:
    world, _ = with_machine("up")
    world.records["more"] = MachineRecord(pool=SINGLES, name="more", state="up", zone=ZONES[0])
    world._check_rest(SINGLES)


def one_is_missing() -> None:
    world = next(world for seed in range(100) if (world := MachineWorld(seed)).trouble.least)
    world._check_rest(SINGLES)


def a_record_costs_too_much() -> None:
    world, provider = with_machine("gone", there=False)
    record = world.records[NAME]
    world.records[NAME] = replace(record, wanted_at=EPOCH, created_at=EPOCH, ended_at=EPOCH + 1000.0)
    provider.past.append(made(NAME))
    provider.past[0].ended = 100.0
    world.check_bill()


BREACHES: dict[str, Callable[[], None]] = {
    "what is there is not given up": one_that_is_there_is_gone,
    "nothing is asked for without a record": one_is_asked_for_by_nothing,
    "what is wanted is not deleted": one_that_is_wanted_is_deleted,
    "no machine goes because its record is missing": one_goes_without_a_record,
    "what may still come is waited for": one_comes_that_was_given_up,
    "never more than the pool may have": there_is_one_too_many,
    "no machine is without a record for long": one_stays_without_a_record,
    "the reply of a create is stored": a_reply_is_forgotten,
    "demand is met": a_job_fails,
    "what nobody needs is gone": one_is_left,
    "no pool stays below its least": one_is_missing,
    "the records cost what is billed": a_record_costs_too_much,
}
