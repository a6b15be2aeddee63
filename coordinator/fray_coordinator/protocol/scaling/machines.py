"""The life of a machine: what a look finds that it has become, and what is done about it.

**Invariant.** Every machine of the provider has a record that was written before it was asked for, and no machine is
given up that may still run something.

**Unsafe sequence.** A scaler writes an intent, is frozen before its call, and another gives the intent up; then the
call is made, and a machine is there that nobody waits for. Or: the reply of a create is lost, the machine is asked
for again under another name, and both are paid. Or: half of the slices of a request have records when the scaler
dies.

**Why this cannot happen.** Each call is derived from a record, and made again until the provider's list agrees: names
are the records' names, so a repeated call finds what the first one made. Records are read after the provider's list,
so whatever is listed and has no record, one in another zone or one that is gone, is nobody's and deleted. That a
machine is not there is told only by a list that was asked for after its call had been answered, or must have ended. A
batch is asked for only when all of its records are there; a broken one goes as a whole. Time without a beat counts
only as far as looks are close to one another: an outage in which nobody could beat, nor look, kills no machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.protocol.scaling.listed import ListedMachine, ListedState
from fray_coordinator.protocol.scaling.view import COMING, PoolView
from fray_coordinator.protocol.scaling.zones import BOOT_FAILURE, remembered, with_refusal
from fray_layouts.records import AgentRecord, MachineRecord, ZoneAnswer
from fray_layouts.states import AgentState, MachineState

BOOT_SECONDS = 600.0
"""A machine that is ready, but for which not all agents beat, is replaced after as long."""
MISSING_SECONDS = 60.0
"""A machine whose agents do not beat, and which is not listed, is gone after as long: one list may be old."""
CALL_SECONDS = 120.0
"""A call that was begun has reached the provider after as long, or never will: callers must give up sooner."""
ASK_AGAIN_SECONDS = 30.0
"""A machine that is not listed as long after it was asked for is asked for again."""
UNFIT_SECONDS = 180.0
"""A machine one of whose agents takes no work is drained after as long: more than a killed process holds a chip."""
LONGEST_GAP = 120.0
"""Seconds between two looks that count at most as time without a beat."""


_NO_AGENT = f"for {BOOT_SECONDS / 60:.0f} minutes not all of its hosts had an agent that beats"


@dataclass(frozen=True, slots=True)
class Observed:
    """What a look finds, before it decides what the pool should have.

    Attributes:
        changed: records to write, by name; they replace those of the view.
        strangers: machines of the provider without a record: they are deleted.
        zones: the answers that count.
    """

    changed: Mapping[str, MachineRecord]
    strangers: tuple[ListedMachine, ...]
    zones: Mapping[str, ZoneAnswer]


def observe(view: PoolView, now: float) -> Observed:
    """What became of each machine of the pool."""
    agents = view.agents_by_machine()
    listed = {known.name: known for known in view.listed or () if _is_of(known, view.machines.get(known.name))}
    strangers = tuple(
        known
        for known in view.listed or ()
        if listed.get(known.name) is not known and known.state != ListedState.ENDING
    )
    zones = view.zones
    after: dict[str, MachineRecord] = {}
    for name, machine in view.machines.items():
        found = listed.get(name)
        after[name] = _next(view, machine, found, agents.get(name, []), now)
        kind, text = _zone_failure(machine, found, after[name])
        if kind:
            zones = with_refusal(zones, machine.zone, kind, text, machine.asked_at or now, now)
    after |= _without_broken_batches(after, now)
    granted = [m.zone for m in after.values() if m.state == MachineState.UP and m.up_at == now]
    changed = {name: machine for name, machine in after.items() if machine != view.machines[name]}
    return Observed(changed, strangers, remembered(zones, granted, now))


def _is_of(listed: ListedMachine, machine: MachineRecord | None) -> bool:
    return machine is not None and listed.zone in ("", machine.zone)


def _refused(machine: MachineRecord, found: ListedMachine | None) -> bool:
    """Whether a machine on its way will not come: without a kind it is paced as if nobody had answered."""
    if machine.state != MachineState.CREATING or found is None:
        return False
    return bool(found.error_kind) or found.state == ListedState.LOST


def _zone_failure(before: MachineRecord, found: ListedMachine | None, after: MachineRecord) -> tuple[str, str]:
    """The kind and the words of what its zone is avoided for; "" twice if it is not."""
    if _refused(before, found):
        assert found is not None
        return found.error_kind or "unavailable", found.error
    if before.state == MachineState.CREATING and after.reason == _NO_AGENT:
        return BOOT_FAILURE, f"{after.name}: {_NO_AGENT}; `fray machines {after.name}` shows what they printed"
    return "", ""


def _next(
    view: PoolView, machine: MachineRecord, found: ListedMachine | None, agents: Sequence[AgentRecord], now: float
) -> MachineRecord:
    """The record after what the provider and the agents say."""
    if found is not None:
        machine = _billed(view, replace(machine, created_at=machine.created_at or now), found, now)
    if found is not None and found.operation and not machine.operation:
        machine = replace(machine, operation=found.operation)
    if machine.state == MachineState.DELETING:
        return _deleting(view, machine, found, now)
    if machine.state == MachineState.WANTED:
        return replace(machine, state=str(MachineState.CREATING), asked_at=now) if found is not None else machine
    if _refused(machine, found) or (found is not None and found.state in (ListedState.LOST, ListedState.ENDING)):
        assert found is not None
        return deleted(machine, found.error or f"the provider says that it is {found.state}", error=found.error)
    return _with_beats(view, machine, found, agents, now)


def _billed(view: PoolView, machine: MachineRecord, found: ListedMachine, now: float) -> MachineRecord:
    """The record with since when it is billed: from the request on, unless a later list says that it waits."""
    if machine.billed_at is None:
        return replace(machine, billed_at=now) if found.billed else machine
    waits = not found.billed and machine.up_at is None and view.listed_at > machine.billed_at
    return replace(machine, billed_at=None) if waits else machine


def _deleting(view: PoolView, machine: MachineRecord, found: ListedMachine | None, now: float) -> MachineRecord:
    """Gone once a list that can tell does not have it."""
    return gone(machine, now) if found is None and _can_tell(view, machine) else machine


def _can_tell(view: PoolView, machine: MachineRecord) -> bool:
    """Whether the list would have the machine: it was asked for after the call had reached the provider."""
    if view.listed is None:
        return False
    if machine.created_at is not None:
        return view.listed_at > machine.created_at
    return view.listed_at >= (machine.asked_at or 0.0) + CALL_SECONDS


def _with_beats(
    view: PoolView, machine: MachineRecord, found: ListedMachine | None, agents: Sequence[AgentRecord], now: float
) -> MachineRecord:
    beating = view.beating(agents)
    if len(beating) >= machine.hosts:
        machine = replace(machine, unseen_since=None)
        if machine.state == MachineState.CREATING:
            begun = {"created_at": machine.created_at or now, "billed_at": machine.billed_at or now}
            machine = replace(machine, state=str(MachineState.UP), up_at=now, **begun)
        return _leaving(machine, beating, agents, now)
    if machine.state == MachineState.CREATING and found is None and _is_left_behind(view, machine):
        return gone(replace(machine, reason="the provider no longer has it"), now)
    if machine.state == MachineState.CREATING and (found is None or found.state != ListedState.READY):
        return machine
    if _all_left(machine, agents):
        return deleted(machine, "its agents have left")
    since = _credited(machine.unseen_since, view.looked_at, now)
    machine = replace(machine, unseen_since=since)
    if found is None and _can_tell(view, machine) and not beating and now - since >= MISSING_SECONDS:
        return gone(replace(machine, reason="the provider no longer has it"), now)
    if now - since >= BOOT_SECONDS:
        return deleted(machine, _NO_AGENT)
    return _leaving(machine, beating, agents, now)


def _is_left_behind(view: PoolView, machine: MachineRecord) -> bool:
    """Whether it was made and is there no more, and nobody will ask for it again: others of its request are up."""
    mates = (m for m in view.machines.values() if m.batch == machine.batch and m.name != machine.name)
    return _can_tell(view, machine) and any(mate.up_at is not None for mate in mates)


def _credited(since: float | None, looked_at: float, now: float) -> float:
    """Since when it counts as unseen: longer gaps between looks count as `LONGEST_GAP`."""
    if since is None:
        return now
    begun = max(looked_at, since)
    return min(since + max(now - begun - LONGEST_GAP, 0.0), now)


def _all_left(machine: MachineRecord, agents: Sequence[AgentRecord]) -> bool:
    """Whether all of its agents have ended by themselves, and those of all hosts were there."""
    ended = [agent for agent in agents if agent.state == AgentState.LEFT]
    return len(ended) >= machine.hosts and all(agent.state != AgentState.LIVE for agent in agents)


def _leaving(
    machine: MachineRecord, beating: Sequence[AgentRecord], agents: Sequence[AgentRecord], now: float
) -> MachineRecord:
    """The machine as a whole drains once one of its hosts does: a slice without a host is none."""
    if machine.state != MachineState.UP:
        return machine
    leaving = [agent for agent in beating if agent.drain]
    if len(beating) < machine.hosts:
        leaving += [agent for agent in agents if agent.state == AgentState.LEFT]
    if leaving:
        return drained(machine, f"its agent {leaving[0].id} leaves", now)
    return _with_fitness(machine, beating, now)


def _with_fitness(machine: MachineRecord, beating: Sequence[AgentRecord], now: float) -> MachineRecord:
    """It drains once one of its hosts has taken no work for long: what runs on the others ends first."""
    unfit = [agent for agent in beating if agent.unfit]
    if not unfit:
        return machine if machine.unfit_since is None else replace(machine, unfit_since=None, error="")
    since = now if machine.unfit_since is None else machine.unfit_since
    why = f"its agent {unfit[0].id} is unfit: {unfit[0].problem}"
    machine = replace(machine, unfit_since=since, error=why)
    return drained(machine, why, now) if now - since >= UNFIT_SECONDS else machine


def _without_broken_batches(machines: Mapping[str, MachineRecord], now: float) -> dict[str, MachineRecord]:
    """The members on their way of requests that can no longer be carried out as a whole."""
    batches: dict[str, list[MachineRecord]] = {}
    for machine in machines.values():
        if machine.batch_size > 1:
            batches.setdefault(machine.batch, []).append(machine)
    given_up: dict[str, MachineRecord] = {}
    for members in batches.values():
        there = [m for m in members if m.state not in (MachineState.DELETING, MachineState.GONE)]
        if len(there) == members[0].batch_size or any(m.up_at is not None for m in members):
            continue
        given_up |= {m.name: abandoned(m, "another machine of its request goes", now) for m in there}
    return given_up


def deleted(machine: MachineRecord, reason: str, error: str = "") -> MachineRecord:
    """A machine that the provider is to be told to remove; one that drains goes for the reason that it drains for."""
    reason = machine.reason if machine.state == MachineState.DRAINING else reason
    return replace(machine, state=str(MachineState.DELETING), reason=reason, error=error or machine.error)


def drained(machine: MachineRecord, reason: str, now: float) -> MachineRecord:
    """A machine whose agents are to take no more work."""
    return replace(machine, state=str(MachineState.DRAINING), reason=reason, draining_at=now)


def gone(machine: MachineRecord, now: float) -> MachineRecord:
    """A machine that is no more."""
    return replace(machine, state=str(MachineState.GONE), ended_at=now)


def abandoned(machine: MachineRecord, reason: str, now: float) -> MachineRecord:
    """A machine that is no longer wanted: an intent is gone at once, one that was asked for is deleted."""
    if machine.state == MachineState.WANTED:
        return gone(replace(machine, reason=reason), now)
    if machine.state == MachineState.CREATING:
        return deleted(machine, reason)
    return drained(machine, reason, now) if machine.state == MachineState.UP else machine


def to_ask(view: PoolView, now: float) -> list[tuple[MachineRecord, ...]]:
    """The requests that are to be made now: intents that are whole, and those of which nothing was heard.

    None while the provider does not say what there is: it might say then that the pool has enough.

    Before each, all of its records are written as `asked`; who fails to write one makes no call.
    """
    if view.listed is None:
        return []
    listed = {known.name for known in view.listed}
    batches: dict[str, list[MachineRecord]] = {}
    for machine in sorted(view.machines.values(), key=lambda m: m.name):
        if machine.state in COMING:
            batches.setdefault(machine.batch or machine.name, []).append(machine)
    due: list[tuple[MachineRecord, ...]] = []
    for members in batches.values():
        if len(members) == members[0].batch_size and any(_is_due(m, listed, now) for m in members):
            members.sort(key=lambda m: (m.name != m.batch, m.name))
            due.append(tuple(members))
    return due


def _is_due(machine: MachineRecord, listed: Iterable[str], now: float) -> bool:
    if machine.state == MachineState.WANTED:
        return True
    return machine.name not in listed and now >= (machine.asked_at or 0.0) + ASK_AGAIN_SECONDS


def asked(machine: MachineRecord, now: float) -> MachineRecord:
    """The record right before the provider is asked for the machine."""
    return replace(machine, state=str(MachineState.CREATING), asked_at=now)


def created(machine: MachineRecord, operation: str, now: float) -> MachineRecord:
    """The record once the provider has taken the request."""
    begun = {"created_at": machine.created_at or now, "billed_at": machine.billed_at or now}
    return replace(machine, operation=operation, error="", **begun)


def refused(machine: MachineRecord, kind: str, text: str, again: bool = False) -> MachineRecord:
    """The record after the provider's refusal: nothing was made, so it goes; after "unavailable" the list will tell.

    again: it had been asked for before, and that call may still be carried out: it is waited for.
    """
    if kind == "unavailable":
        return replace(machine, error=text)
    told = replace(machine, reason=f"{kind} in {machine.zone or machine.provider}", error=text)
    return deleted(told, told.reason) if again else gone(told, machine.asked_at or machine.wanted_at)


def to_delete(view: PoolView) -> list[MachineRecord]:
    """The machines that the provider is to be told to remove, again and again until it lists them no more."""
    return [m for m in view.machines.values() if m.state == MachineState.DELETING]


def to_drain(view: PoolView) -> list[str]:
    """The ids of agents that are to be told to leave."""
    draining = {m.name for m in view.machines.values() if m.state == MachineState.DRAINING}
    return [
        agent.id
        for agent in view.agents.values()
        if agent.machine in draining and agent.state == AgentState.LIVE and not agent.drain
    ]
