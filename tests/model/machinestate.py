"""The essence of a pool's machines, its provider and its scalers, as small hashable values, and the conversion back.

A machine's state at its provider: "" (absent), "ready", "up" (its agent beats), "left" (its agent has left), "lost", or
"again" (a repeated call made it once more after it was given up).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from fray_coordinator.protocol.scaling.machines import CALL_SECONDS
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState, PoolView
from fray_layouts.records import AgentRecord, MachineRecord, ProvisioningSpec, Resources
from fray_layouts.states import AgentState, MachineState

POOL, ZONE = "p", "a-a"
HOST = Resources(cpu=1000, memory=2**30, disk=2**30)
NOW, TICK = 100_000.0, CALL_SECONDS / 2
"""The time of every state, from which times in it are told; and seconds of a tick."""
OLD = 2
"""Ticks after which a time is as good as any earlier one."""
NEVER = -1
ENDLESS = 99

T = TypeVar("T")


class Machine(NamedTuple):
    """The essence of a machine's record; times are in ticks ago."""

    state: str = ""
    asked: int = NEVER
    created: int = NEVER
    unseen: int = NEVER

    @property
    def counts(self) -> bool:
        return self.state not in ("", MachineState.GONE)


class Call(NamedTuple):
    """A create that may still land. last: nobody has asked for the machine since, and no other call has made it."""

    age: int = 0
    last: bool = True


class Scaler(NamedTuple):
    """A scaler in a run.

    Attributes:
        todo: what it does next, as (what, number of the machine, record); () between runs.
        listed: what there was when it asked the provider; answered: it was told; age: ticks since.
        seen: the records as it knows them.
        old: the numbers of those that were written since.
    """

    todo: tuple[Act, ...] = ()
    listed: tuple[str, ...] = ()
    answered: bool = True
    age: int = 0
    seen: tuple[Machine, ...] = ()
    old: tuple[int, ...] = ()


class Budget(NamedTuple):
    """How often each event may still happen.

    Attributes:
        runs: runs that may begin. time: how often time passes; without bounds if both are `ENDLESS`.
        changes: changes of `min`.
        faults: faults of the provider.
    """

    runs: int = ENDLESS
    time: int = ENDLESS
    changes: int = 0
    faults: int = 0


class Pool(NamedTuple):
    """A state.

    Attributes:
        there: at the provider.
        want: the pool's `min`.
        left: what may still happen.
    """

    records: tuple[Machine, ...]
    there: tuple[str, ...]
    calls: tuple[tuple[Call, ...], ...]
    scalers: tuple[Scaler, ...]
    left: Budget
    want: int = 1


@dataclass(frozen=True, slots=True)
class Scope:
    """The size of the world. by_cost: whether the price keeps the pool at `most`, not `max`."""

    budget: Budget
    scalers: int = 2
    names: int = 2
    most: int = 1
    by_cost: bool = False


NO = Machine()
Act = tuple[str, int, Machine]


def do(what: str, number: int = 0, record: Machine = NO) -> Act:
    return what, number, record


def writes(records: Iterable[MachineRecord]) -> list[Act]:
    """The writes of these records that change anything here."""
    return [do("write", number_of(record.name), essence(record)) for record in records]


def without(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(n for n in numbers if n != number)


def put(values: tuple[T, ...], number: int, value: T) -> tuple[T, ...]:
    return (*values[:number], value, *values[number + 1 :])


def spent(w: Pool, what: str) -> Pool:
    left = getattr(w.left, what)
    return w if left == ENDLESS else w._replace(left=w.left._replace(**{what: left - 1}))


def with_call(w: Pool, number: int, call: Call) -> Pool:
    return w._replace(calls=put(w.calls, number, (*w.calls[number], call)))


def settled(w: Pool) -> Pool:
    """The state without the names that nobody knows any more; scalers are alike, so their order is none."""
    known = _about_to(w) | {n for scaler in w.scalers for n, seen in enumerate(scaler.seen) if seen != NO}
    records = tuple(
        NO if m.state == MachineState.GONE and n not in known and not w.there[n] and not w.calls[n] else m
        for n, m in enumerate(w.records)
    )
    return w._replace(records=records, scalers=tuple(sorted(w.scalers)))


def free_name(w: Pool) -> int | None:
    """The number of a machine that no participant knows."""
    about_to = _about_to(w)
    free = (n for n, m in enumerate(w.records) if m == NO and not w.there[n] and not w.calls[n] and n not in about_to)
    return next(free, None)


def _about_to(w: Pool) -> set[int]:
    """The numbers of machines with which a scaler is about to do something."""
    named = ("write", "asked", "call", "call again", "delete", "drain")
    return {number for scaler in w.scalers for what, number, _ in scaler.todo if what in named}


def later(w: Pool) -> Pool:
    calls = tuple(tuple(Call(c.age + 1, c.last) for c in of_one if c.age + 1 < OLD) for of_one in w.calls)
    scalers = tuple(
        s._replace(
            age=min(s.age + 1, OLD) if do("observe") in s.todo else 0,
            seen=tuple(map(_aged, s.seen)),
            todo=tuple(do(what, number, _aged(record)) for what, number, record in s.todo),
        )
        for s in w.scalers
    )
    return settled(w._replace(records=tuple(map(_aged, w.records)), calls=calls, scalers=scalers))


def _aged(m: Machine) -> Machine:
    asked, created, unseen = (t if t == NEVER else min(t + 1, OLD) for t in (m.asked, m.created, m.unseen))
    return Machine(m.state, asked, created, unseen)


@cache
def record_of(number: int, m: Machine) -> MachineRecord:
    """The real record for the essence `m`."""
    asked, created, unseen = (None if t == NEVER else NOW - t * TICK for t in (m.asked, m.created, m.unseen))
    name = f"m{number}"
    times: dict[str, Any] = {"wanted_at": NOW, "asked_at": asked, "created_at": created, "unseen_since": unseen}
    return MachineRecord(pool=POOL, name=name, state=m.state, zone=ZONE, batch=name, hourly_cost=1.0, **times)


def essence(record: MachineRecord) -> Machine:
    """The essence of a record in its state."""
    state = str(record.state)
    asked, created, unseen = (
        NEVER if t is None else min(round((NOW - t) / TICK), OLD)
        for t in (record.asked_at, record.created_at, record.unseen_since)
    )
    if state == MachineState.GONE:
        return Machine(state)
    if state != MachineState.CREATING and created != NEVER:
        asked = NEVER
    return Machine(state, asked, created, NEVER if state == MachineState.DELETING else unseen)


def number_of(name: str) -> int:
    return int(name[1:])


@cache
def view_of(
    scope: Scope, seen: tuple[Machine, ...], listed: tuple[str, ...] | None, beats: tuple[str, ...], age: int, want: int
) -> PoolView:
    bounds: dict[str, Any] = {"max": 9, "max_hourly_cost": float(scope.most)} if scope.by_cost else {"max": scope.most}
    spec = ProvisioningSpec(provider="command", zones=[ZONE], min=want, capacity=HOST, idle_seconds=0.0, **bounds)
    states = {AgentState.LIVE: "up", AgentState.LEFT: "left"}
    agents = {
        f"m{n}": AgentRecord(id=f"m{n}", host="h", pool=POOL, machine=f"m{n}", state=state, capacity=HOST)
        for n, there in enumerate(beats)
        for state, told in states.items()
        if there == told
    }
    answer = None if listed is None else [_listed(n, there) for n, there in enumerate(listed) if there]
    machines = {f"m{n}": record_of(n, m) for n, m in enumerate(seen) if m.counts}
    return PoolView(
        pool=POOL,
        spec=spec,
        machines=machines,
        recorded=frozenset(f"m{n}" for n, m in enumerate(seen) if m.state == MachineState.GONE),
        listed=answer,
        listed_at=NOW - age * TICK,
        agents=agents,
        capacity=HOST,
        prices={ZONE: 1.0},
        ran_at=NOW,
    )


def _listed(number: int, there: str) -> ListedMachine:
    return ListedMachine(POOL, f"m{number}", ZONE, ListedState.LOST if there == "lost" else ListedState.READY)
