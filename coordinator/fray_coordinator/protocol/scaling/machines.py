"""The life of a machine: how a run of the scaler finds each machine, and what it does about it.

**Invariant.** Every machine of the provider has a record that was written before the provider was asked for it. No
machine is given up that may still run something.

**Unsafe sequence.**

1. Scaler A writes an intent and is frozen before it calls the provider.
2. Scaler B gives the intent up.
3. A wakes and makes the call, and the provider makes a machine that nobody waits for.

Or: the reply to a create is lost, A asks for the machine again under another name, and both are billed. Or: A dies when
only half of the machines of one request have records. Or: somebody puts a backup of the root in its place, and the
scaler deletes all machines that were made since, with what runs there.

**Why this cannot happen.** Each call follows from a record, and is repeated until the provider's list agrees with the
record. Machines have the names of their records, so a repeated call finds what the first one made. The records are read
after the provider's list, so a listed machine in another zone than its record says, or with a record that says it is
gone, belongs to nobody and is deleted; so is what a repeated request made once more, where the provider names machines.
Any other listed machine without a record gets one, as stray: it becomes one of the pool's if its agents join. It is
deleted only if none did for `STRAY_SECONDS`, for longer than backups are old, or if a person says so. That a machine
does not exist is concluded only from a list that was requested after the machine's call was answered, or must have
ended. A batch is requested only when all of its records exist, and a broken batch is given up as a whole. Time without
a heartbeat counts only as far as runs follow one another closely: an outage in which agents could not write, and
scalers could not run, ends no machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.concurrency import decide_each
from fray_coordinator.protocol.scaling.provisioning import account_of
from fray_coordinator.protocol.scaling.view import (
    BOOT_FAILURE,
    COMING,
    ListedMachine,
    ListedState,
    PoolView,
    remembered,
    with_refusal,
)
from fray_layouts.key_encoding import is_id
from fray_layouts.records import AgentRecord, MachineRecord, ZoneAnswer
from fray_layouts.states import AgentState, MachineState

BOOT_SECONDS = 600.0
"""Seconds after which a machine that is ready is replaced if not all of its hosts have an agent with heartbeats."""
MISSING_SECONDS = 60.0
"""Seconds after which a machine without heartbeats that is not listed counts as gone: one list may be old."""
CALL_SECONDS = 120.0
"""Seconds after which a call has reached the provider or never will. Callers must give up sooner."""
ASK_AGAIN_SECONDS = 30.0
"""Seconds after which a machine that is not listed is requested again. The request finds what the first one made."""
UNFIT_SECONDS = 180.0
"""Seconds after which a machine with an unfit agent is drained: longer than a killed process holds a TPU chip."""
STRAY_SECONDS = 14 * 86400.0
"""Seconds after which a machine whose record is missing is deleted if no agent of it has joined: twice as long as the
weekly backups are old that people keep. It costs money meanwhile, so people are told."""
MAX_NAMED = 3
"""Machines that a text for people names."""
LONGEST_GAP = 120.0
"""Seconds between two runs that count as time without a heartbeat, at most."""


_NO_AGENT = f"for {BOOT_SECONDS / 60:.0f} minutes not all of its hosts had an agent that sends heartbeats"


@dataclass(frozen=True, slots=True)
class Observed:
    """What a run of the scaler found, before it decides what the pool should have.

    Attributes:
        changed: records to write, by name; they replace those of the view.
        strangers: machines in the provider's list that by their records are gone, elsewhere, or another one's copies;
            they are deleted.
        zones: the answers of zones that still count.
        problems: by name, the machines that cannot be judged, with the errors. They stay as they are.
    """

    changed: Mapping[str, MachineRecord]
    strangers: tuple[ListedMachine, ...]
    zones: Mapping[str, ZoneAnswer]
    problems: Mapping[str, str]


def observe(view: PoolView, now: float) -> Observed:
    """What happened to each machine of the pool."""
    agents = view.agents_by_machine()
    listed = {known.name: known for known in view.listed or () if _is_of(known, view.machines.get(known.name))}
    others = [
        known
        for known in view.listed or ()
        if listed.get(known.name) is not known and known.state != ListedState.ENDING
    ]
    problems: dict[str, str] = {}
    left_over = decide_each(others, lambda m: (m, _is_left_over(view, m)), problems, lambda m: m.name)
    zones, after = view.zones, dict(view.machines)

    def take_stray(known: ListedMachine) -> None:
        if known.name not in view.machines and is_id(known.name):
            after[known.name] = _stray(view, known, now)

    def follow(machine: MachineRecord) -> None:
        nonlocal zones
        found = listed.get(machine.name)
        following = _next_record(view, machine, found, agents.get(machine.name, []), now)
        kind, text = _zone_failure(machine, found, following)
        if kind:
            zones = with_refusal(zones, machine.zone, kind, text, machine.asked_at or now, now)
        after[machine.name] = following

    decide_each([m for m, is_old in left_over if not is_old], take_stray, problems, lambda m: m.name)
    decide_each(view.machines.values(), follow, problems, lambda machine: machine.name)
    after |= _without_broken_batches(after, now)
    granted = [m.zone for m in after.values() if m.state == MachineState.UP and m.up_at == now]
    changed = {name: machine for name, machine in after.items() if machine != view.machines.get(name)}
    strangers = tuple(known for known, is_old in left_over if is_old)
    return Observed(changed, strangers, remembered(zones, granted, now), problems)


def _is_of(listed: ListedMachine, machine: MachineRecord | None) -> bool:
    return machine is not None and listed.zone in ("", machine.zone)


def _is_left_over(view: PoolView, listed: ListedMachine) -> bool:
    """Whether there is a record that says that this machine is gone, elsewhere, or there under its own name."""
    return any(_is_known(view, name) for name in (listed.name, listed.copy_of))


def _is_known(view: PoolView, name: str) -> bool:
    machine = view.machines.get(name)
    return name in view.recorded if machine is None else machine.state != MachineState.STRAY


def _stray(view: PoolView, listed: ListedMachine, now: float) -> MachineRecord:
    """The record of a machine that has none."""
    spec = view.spec
    return MachineRecord(
        pool=view.pool,
        name=listed.name,
        state=MachineState.STRAY,
        provider=spec.provider,
        project=account_of(spec).project,
        command=spec.command,
        machine_type=spec.machine_type,
        zone=listed.zone,
        spot=spec.spot,
        hosts=view.hosts,
        batch=listed.batch or listed.name,
        reason=f"its record is missing; `fray machines {listed.name} --delete` deletes it if nothing needs it",
        hourly_cost=view.prices.get(listed.zone),
        wanted_at=now,
        created_at=now,
        billed_at=now if listed.billed else None,
    )


def _refused(machine: MachineRecord, found: ListedMachine | None) -> bool:
    """Whether a machine on its way will not come.

    If the refusal has no kind, the zone is avoided as if nobody had answered.
    """
    if machine.state != MachineState.CREATING or found is None:
        return False
    return bool(found.error_kind) or found.state == ListedState.LOST


def _zone_failure(before: MachineRecord, found: ListedMachine | None, after: MachineRecord) -> tuple[str, str]:
    """The kind and the text of the failure for which the zone is avoided; "" twice if there is none."""
    if _refused(before, found):
        assert found is not None
        return found.error_kind or "unavailable", found.error
    if before.state == MachineState.CREATING and after.reason == _NO_AGENT:
        return BOOT_FAILURE, f"{after.name}: {_NO_AGENT}; `fray machines {after.name}` shows what they printed"
    return "", ""


def _next_record(
    view: PoolView, machine: MachineRecord, found: ListedMachine | None, agents: Sequence[AgentRecord], now: float
) -> MachineRecord:
    """The record after what the provider and the agents say now."""
    if found is not None:
        machine = _billed(view, replace(machine, created_at=machine.created_at or now), found, now)
    if found is not None and found.operation and not machine.operation:
        machine = replace(machine, operation=found.operation)
    if machine.state == MachineState.DELETING:
        return _gone_if_unlisted(view, machine, found, now)
    if machine.state == MachineState.STRAY:
        return _stray_so_far(view, machine, found, agents, now)
    if machine.state == MachineState.WANTED:
        return replace(machine, state=str(MachineState.CREATING), asked_at=now) if found is not None else machine
    if _refused(machine, found) or (found is not None and found.state in (ListedState.LOST, ListedState.ENDING)):
        assert found is not None
        return deleted(machine, found.error or f"the provider says that it is {found.state}", error=found.error)
    return _after_heartbeats(view, machine, found, agents, now)


def _billed(view: PoolView, machine: MachineRecord, found: ListedMachine, now: float) -> MachineRecord:
    """The record with the time since which the machine is billed.

    That is the time of the request, unless a later list says that the request waits for capacity.
    """
    if machine.billed_at is None:
        return replace(machine, billed_at=now) if found.billed else machine
    waits = not found.billed and machine.up_at is None and view.listed_at > machine.billed_at
    return replace(machine, billed_at=None) if waits else machine


def _gone_if_unlisted(view: PoolView, machine: MachineRecord, found: ListedMachine | None, now: float) -> MachineRecord:
    """The record of a machine that is being deleted: gone, once a list that is new enough does not have it."""
    return gone(machine, now) if found is None and _can_tell(view, machine) else machine


def _stray_so_far(
    view: PoolView, machine: MachineRecord, found: ListedMachine | None, agents: Sequence[AgentRecord], now: float
) -> MachineRecord:
    """The record of a stray machine: still stray, one of the pool's, to be deleted, or gone."""
    if len(view.beating(agents)) >= machine.hosts:
        return replace(
            machine, state=str(MachineState.UP), up_at=now, reason="its record was missing; its agents are here"
        )
    if found is None:
        return (
            gone(replace(machine, reason="the provider no longer has it"), now) if _can_tell(view, machine) else machine
        )
    if now - machine.wanted_at >= STRAY_SECONDS:
        return deleted(machine, f"its record was missing, and it had no agent for {STRAY_SECONDS / 86400:.0f} days")
    return machine


def _can_tell(view: PoolView, machine: MachineRecord) -> bool:
    """Whether the list would show the machine if it existed: it was requested after the call reached the provider."""
    if view.listed is None:
        return False
    if machine.created_at is not None:
        return view.listed_at > machine.created_at
    return view.listed_at >= (machine.asked_at or 0.0) + CALL_SECONDS


def _after_heartbeats(
    view: PoolView, machine: MachineRecord, found: ListedMachine | None, agents: Sequence[AgentRecord], now: float
) -> MachineRecord:
    beating = view.beating(agents)
    if len(beating) >= machine.hosts:
        machine = replace(machine, unseen_since=None)
        if machine.state == MachineState.CREATING:
            begun = {"created_at": machine.created_at or now, "billed_at": machine.billed_at or now}
            machine = replace(machine, state=str(MachineState.UP), up_at=now, **begun)
        return _drained_if_leaving(machine, beating, agents, now)
    if machine.state == MachineState.CREATING and found is None and _is_left_behind(view, machine):
        return gone(replace(machine, reason="the provider no longer has it"), now)
    if machine.state == MachineState.CREATING and (found is None or found.state != ListedState.READY):
        return machine
    if _all_left(machine, agents):
        return deleted(machine, "its agents have left")
    since = _unseen_since(machine.unseen_since, view.ran_at, now)
    machine = replace(machine, unseen_since=since)
    if found is None and _can_tell(view, machine) and not beating and now - since >= MISSING_SECONDS:
        return gone(replace(machine, reason="the provider no longer has it"), now)
    if now - since >= BOOT_SECONDS:
        return deleted(machine, _NO_AGENT)
    return _drained_if_leaving(machine, beating, agents, now)


def _is_left_behind(view: PoolView, machine: MachineRecord) -> bool:
    """Whether the machine was made and exists no more, while other machines of its request are up.

    Nobody will ask for it again.
    """
    mates = (m for m in view.machines.values() if m.batch == machine.batch and m.name != machine.name)
    return _can_tell(view, machine) and any(mate.up_at is not None for mate in mates)


def _unseen_since(since: float | None, ran_at: float, now: float) -> float:
    """The time since which the machine counts as unseen. A longer gap between runs counts as `LONGEST_GAP`."""
    if since is None:
        return now
    begun = max(ran_at, since)
    return min(since + max(now - begun - LONGEST_GAP, 0.0), now)


def _all_left(machine: MachineRecord, agents: Sequence[AgentRecord]) -> bool:
    """Whether every host had an agent, and all of these agents have left by themselves."""
    ended = [agent for agent in agents if agent.state == AgentState.LEFT]
    return len(ended) >= machine.hosts and all(agent.state != AgentState.LIVE for agent in agents)


def _drained_if_leaving(
    machine: MachineRecord, beating: Sequence[AgentRecord], agents: Sequence[AgentRecord], now: float
) -> MachineRecord:
    """The record, drained if one of the hosts is: a slice that lacks a host is of no use."""
    if machine.state != MachineState.UP:
        return machine
    leaving = [agent for agent in beating if agent.drain]
    if len(beating) < machine.hosts:
        leaving += [agent for agent in agents if agent.state == AgentState.LEFT]
    if leaving:
        return drained(machine, f"its agent {leaving[0].id} is leaving", now)
    return _with_fitness(machine, beating, now)


def _with_fitness(machine: MachineRecord, beating: Sequence[AgentRecord], now: float) -> MachineRecord:
    """The record, drained if one of its hosts has long been unfit, so that what runs on the others ends first."""
    unfit = [agent for agent in beating if agent.unfit]
    if not unfit:
        return machine if machine.unfit_since is None else replace(machine, unfit_since=None, error="")
    since = now if machine.unfit_since is None else machine.unfit_since
    why = f"its agent {unfit[0].id} is unfit: {unfit[0].problem}"
    machine = replace(machine, unfit_since=since, error=why)
    return drained(machine, why, now) if now - since >= UNFIT_SECONDS else machine


def _without_broken_batches(machines: Mapping[str, MachineRecord], now: float) -> dict[str, MachineRecord]:
    """The machines on their way whose request can no longer be made as a whole."""
    batches: dict[str, list[MachineRecord]] = {}
    for machine in machines.values():
        if machine.batch_size > 1:
            batches.setdefault(machine.batch, []).append(machine)
    given_up: dict[str, MachineRecord] = {}
    for members in batches.values():
        there = [m for m in members if m.state not in (MachineState.DELETING, MachineState.GONE)]
        if len(there) == members[0].batch_size or any(m.up_at is not None for m in members):
            continue
        given_up |= {m.name: abandoned(m, "another machine of the same request is gone", now) for m in there}
    return given_up


def deleted(machine: MachineRecord, reason: str, error: str = "") -> MachineRecord:
    """The record of a machine that the provider is to delete. If the machine drains, the reason for that stays."""
    reason = machine.reason if machine.state == MachineState.DRAINING else reason
    return replace(machine, state=str(MachineState.DELETING), reason=reason, error=error or machine.error)


def given_up_stray(machine: MachineRecord) -> MachineRecord | None:
    """The record of a stray machine that a person wants deleted; None for any other machine."""
    return deleted(machine, "somebody asked") if machine.state == MachineState.STRAY else None


def stray_problem(machines: Iterable[MachineRecord]) -> str:
    """What people must know about stray machines; "" if there are none."""
    strays = sorted(machine.name for machine in machines if machine.state == MachineState.STRAY)
    if not strays:
        return ""
    named = ", ".join(strays[:MAX_NAMED])
    return (
        f"the records of {len(strays)} machines are missing ({named}), as after an older copy of the root was put in "
        f"its place; they are kept for {STRAY_SECONDS / 86400:.0f} days unless their agents join; "
        "`fray machines NAME --delete` deletes one sooner"
    )


def drained(machine: MachineRecord, reason: str, now: float) -> MachineRecord:
    """The record of a machine whose agents must take no more work."""
    return replace(machine, state=str(MachineState.DRAINING), reason=reason, draining_at=now)


def gone(machine: MachineRecord, now: float) -> MachineRecord:
    """The record of a machine that exists no more."""
    return replace(machine, state=str(MachineState.GONE), ended_at=now)


def abandoned(machine: MachineRecord, reason: str, now: float) -> MachineRecord:
    """The record of a machine that is no longer wanted.

    An intent is gone at once; a machine that was requested is deleted; one that is up drains first.
    """
    if machine.state == MachineState.WANTED:
        return gone(replace(machine, reason=reason), now)
    if machine.state == MachineState.CREATING:
        return deleted(machine, reason)
    return drained(machine, reason, now) if machine.state == MachineState.UP else machine


def to_ask(view: PoolView, now: float) -> list[tuple[MachineRecord, ...]]:
    """The requests to make now: complete intents, and requests of which nothing was heard.

    There are none while the provider does not answer: its list might show that the pool has enough.

    Before each request all of its records are written as `asked`. If one of these writes fails, the call is not made.
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
    """The record, as it is written right before the provider is asked for the machine."""
    return replace(machine, state=str(MachineState.CREATING), asked_at=now)


def created(machine: MachineRecord | None, operation: str, now: float) -> MachineRecord | None:
    """The record once the provider has accepted the request; None if the machine was given up, or its record removed.

    Another scaler may have changed the record since the request. If it deletes the machine, its error stays.
    """
    if machine is None or machine.state == MachineState.GONE:
        return None
    begun = {"created_at": machine.created_at or now, "billed_at": machine.billed_at or now}
    error = machine.error if machine.state == MachineState.DELETING else ""
    return replace(machine, operation=operation, error=error, **begun)


def refused(machine: MachineRecord, kind: str, text: str, again: bool = False) -> MachineRecord:
    """The record after the provider's refusal.

    Nothing was made, so the machine is gone; after "unavailable" the next list will tell.

    again: it was requested before, and that call may still be carried out, so the machine is deleted.
    """
    if kind == "unavailable":
        return replace(machine, error=text)
    machine = replace(machine, reason=f"{kind} in {machine.zone or machine.provider}", error=text)
    return deleted(machine, machine.reason) if again else gone(machine, machine.asked_at or machine.wanted_at)


def to_delete(view: PoolView) -> list[MachineRecord]:
    """The machines that the provider is told to delete, in each run until it lists them no more."""
    return [m for m in view.machines.values() if m.state == MachineState.DELETING]


def to_drain(view: PoolView) -> list[str]:
    """The ids of the agents to tell that they must leave."""
    draining = {m.name for m in view.machines.values() if m.state == MachineState.DRAINING}
    return [
        agent.id
        for agent in view.agents.values()
        if agent.machine in draining and agent.state == AgentState.LIVE and not agent.drain
    ]
