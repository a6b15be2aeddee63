"""A small world for machines: scalers that scale one pool at once, and its provider.

A scaler does what `PoolRun` does, with one list, read, write or call in each step. Between any two of them the others
continue, and it may be killed. The decisions are `observe`, `plan`, `confirmed`, `to_ask`, `asked`, `created`,
`refused`, `to_delete` and `to_drain`. The pool wants its `min`, which people change. Names are used again once nobody
knows them any more. A call lands within `CALL_SECONDS` of the write before it, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from unittest import mock

from fray_coordinator.protocol.scaling import machines as life
from fray_coordinator.protocol.scaling.machines import to_ask
from fray_coordinator.protocol.scaling.planning import confirmed, plan
from fray_coordinator.protocol.scaling.view import PoolView
from fray_layouts.states import MachineState
from tests.model.explorer import Step
from tests.model.machinestate import (
    NEVER,
    NO,
    NOW,
    Act,
    Call,
    Machine,
    Pool,
    Scaler,
    Scope,
    do,
    essence,
    free_name,
    later,
    number_of,
    put,
    record_of,
    settled,
    spent,
    view_of,
    with_call,
    without,
    writes,
)

OVER = "more machines than the pool may have"
UNRECORDED = "a machine is made without a record"
FORGOTTEN = "a machine that is there, or may come, is given up"
TAKEN_AWAY = "a machine that is wanted is deleted"

DECISIONS = ("observe", "plan", "confirm", "ask", "act")
"""Decisions, which take no time and are not visible to others."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a world. Each can be switched off.

    Attributes: intent_first: a record is written before its machine is requested. asked_first: before each call the
        record says so, by a conditional write. names_of_intents: a repeated request has the same name. confirm: a
        scaler that has written intents lists the records, and gives up excess ones, before it makes requests.
        confirm_left: a scaler that finds intents of another one does that too. confirm_again: it does that again if
        another scaler changed a record that it gave up. strangers_go: listed machines that are gone by their records
        are deleted. silence: no answer of the provider proves nothing. fresh_list: only a list that began after a call
        can show that its machine does not exist. call_seconds: a call
        that may be under way is waited for. call_at_once: a call that was not made at once is never made. waits_again:
        a repeated call that is refused may have been executed the first time. taken_first: a machine counts as made
        once the provider accepted the request.
    """

    intent_first: bool = True
    asked_first: bool = True
    names_of_intents: bool = True
    confirm: bool = True
    confirm_left: bool = True
    confirm_again: bool = True
    strangers_go: bool = True
    silence: bool = True
    fresh_list: bool = True
    call_seconds: bool = True
    call_at_once: bool = True
    waits_again: bool = True
    taken_first: bool = True


class MachineWorld:
    """The steps under `rules`."""

    def __init__(self, rules: Rules, scope: Scope) -> None:
        self.rules, self.scope = rules, scope
        n = scope.names
        idle = (Scaler(),) * scope.scalers
        self.start = Pool((NO,) * n, ("",) * n, ((),) * n, idle, scope.budget)

    def good(self, w: Pool) -> bool:
        """The pool has the machines that it wants, and no others are billed."""
        up = sum(m.state == MachineState.UP and there == "up" for m, there in zip(w.records, w.there, strict=True))
        rest = sum(m.counts for m in w.records) + sum(there != "" for there in w.there)
        return up == w.want and rest == 2 * w.want and not any(w.calls)

    def broken(self, w: Pool) -> str:
        found = zip(w.records, w.there, w.calls, strict=True)
        paid = sum(m.counts and (there != "" or any(call.last for call in calls)) for m, there, calls in found)
        return OVER if paid > self.scope.most else ""

    def steps(self, w: Pool) -> Iterator[Step[Pool]]:
        for who, scaler in enumerate(w.scalers):
            if scaler in w.scalers[:who]:
                continue  # the scalers are alike
            yield from self._acts(w, who)
            if scaler != Scaler():
                yield Step(f"s{who} is killed", self._with(w, who, Scaler()), fault=True)
        for number, there in enumerate(w.there):
            if there == "ready":
                yield Step(f"m{number} boots", settled(w._replace(there=put(w.there, number, "up"))))
            if there in ("ready", "up") and w.left.faults:
                lost = spent(w, "faults")._replace(there=put(w.there, number, "lost"))
                yield Step(f"m{number} is preempted", lost, fault=True)
            for call in set(w.calls[number]):
                yield self._lands(w, number, call)
        if w.left.changes:
            yield Step(f"min {1 - w.want}", spent(w, "changes")._replace(want=1 - w.want), fault=True)
        if w.left.time:
            yield Step("time passes", later(spent(w, "time")))

    # --- the provider

    def _lands(self, w: Pool, number: int, call: Call) -> Step[Pool]:
        left = list(w.calls[number])
        left.remove(call)
        w = w._replace(calls=put(w.calls, number, tuple(Call(other.age, last=False) for other in left)))
        gone = w.records[number].state in (MachineState.DELETING, MachineState.GONE)
        return self._makes(w, number, f"m{number} is made late", "again" if gone and not call.last else "ready")

    def _makes(self, w: Pool, number: int, label: str, how: str = "ready", fault: bool = False) -> Step[Pool]:
        """The provider makes a machine, unless it is there."""
        there = w.there if w.there[number] else put(w.there, number, how)
        breaks = UNRECORDED if w.records[number] == NO else ""
        return Step(label, settled(w._replace(there=there)), fault, breaks)

    def _made_by(self, w: Pool, who: int, scaler: Scaler, number: int, again: bool) -> Iterator[Step[Pool]]:
        """The possible outcomes of a call that is made now."""
        record = record_of(number, scaler.seen[number])
        label, told = f"s{who}: create m{number}", scaler._replace(todo=(do("reply", number), *scaler.todo))
        yield self._makes(self._with(w, who, told), number, f"{label}, made")
        if not w.left.faults:
            return
        w = spent(w, "faults")
        unsure, told_so = self._with(w, who, scaler), self._with(w, who, told)
        yield Step(f"{label}, never carried out", unsure, fault=True)
        yield self._makes(unsure, number, f"{label}, the reply lost", fault=True)
        yield Step(f"{label}, late", with_call(unsure, number, Call(last=not w.there[number])), fault=True)
        twice = with_call(told_so, number, Call(last=False))
        yield self._makes(twice, number, f"{label}, made, and sent again", fault=True)
        if not w.there[number]:
            refused = essence(life.refused(record, "stockout", "none left", again and self.rules.waits_again))
            todo = (do("write", number, refused), *scaler.todo)
            yield Step(f"{label}, refused", self._with(w, who, scaler._replace(todo=todo)), fault=True)

    # --- a run, as `PoolRun` does it

    def _acts(self, w: Pool, who: int) -> Iterator[Step[Pool]]:
        """The next thing that a scaler does."""
        scaler = w.scalers[who]
        if not scaler.todo:
            yield from self._lists(w, who)
            return
        (what, number, record), rest = scaler.todo[0], scaler.todo[1:]
        scaler = scaler._replace(todo=rest)
        if what == "read":
            read = scaler._replace(seen=w.records, old=())
            yield Step(f"s{who}: read", self._with(w, who, read))
        elif what == "write":
            yield self._writes(w, who, scaler, number, record)
        elif what == "reply":
            yield self._stores_reply(w, who, scaler, number)
        elif what == "want":
            yield self._wants(w, who, scaler)
        elif what == "asked":
            yield self._asks(w, who, scaler, number)
        elif what in ("call", "call again"):
            if self.rules.call_at_once and record.asked > 0:
                yield Step(f"s{who}: no call", self._with(w, who, scaler))
            else:
                yield from self._made_by(w, who, scaler, number, what == "call again")
        elif what == "delete":
            wanted = w.records[number].state not in ("", MachineState.DELETING, MachineState.GONE)
            breaks = TAKEN_AWAY if wanted and w.there[number] else ""
            after = w._replace(there=put(w.there, number, ""))
            yield Step(f"s{who}: delete m{number}", self._with(after, who, scaler), breaks=breaks)
        elif what == "drain":
            there = "left" if w.there[number] == "up" else w.there[number]
            yield Step(
                f"s{who}: drain m{number}", self._with(w._replace(there=put(w.there, number, there)), who, scaler)
            )

    def _lists(self, w: Pool, who: int) -> Iterator[Step[Pool]]:
        if not w.left.runs:
            return
        w = spent(w, "runs")
        scaler = Scaler((do("read"), do("observe")), w.there)
        yield Step(f"s{who}: list", self._with(w, who, scaler))
        if w.left.faults:
            failed = self._with(spent(w, "faults"), who, scaler._replace(answered=False))
            yield Step(f"s{who}: no list", failed, fault=True)

    def _with(self, w: Pool, who: int, scaler: Scaler) -> Pool:
        """The state after it, when that scaler has decided what it does next."""
        while scaler.todo and scaler.todo[0][0] in DECISIONS:
            scaler = self._decides(scaler.todo[0][0], w.want, scaler._replace(todo=scaler.todo[1:]))
        return settled(w._replace(scalers=put(w.scalers, who, scaler if scaler.todo else Scaler())))

    def _decides(self, what: str, want: int, scaler: Scaler) -> Scaler:
        """What a scaler does next, by what it knows."""
        todo: list[Act]
        view = self._view(want, scaler)
        if what == "observe":
            todo = [*self._observed(view), do("plan")]
            return scaler._replace(todo=tuple(todo), age=0)
        if what == "plan":
            planned = plan(view, NOW)
            todo = writes(planned.changed.values())
            todo += [do("want") for order in planned.orders for _ in range(order.count)]
            todo += [do("read")] if planned.orders else []
            todo += [do("confirm")] if self.rules.confirm and (planned.orders or self.rules.confirm_left) else []
            todo.append(do("ask"))
        elif what == "confirm":
            todo = writes(confirmed(view, NOW).values())
            todo += [do("confirm")] if todo and self.rules.confirm_again else []
            todo += scaler.todo
        elif what == "ask":
            todo = [do("asked", number_of(machine.name)) for batch in to_ask(view, NOW) for machine in batch]
            todo.append(do("act"))
        else:
            todo = [do("delete", number_of(machine.name)) for machine in life.to_delete(view)]
            todo += [do("drain", number_of(agent)) for agent in life.to_drain(view)]
            return Scaler(tuple(todo))
        return scaler._replace(todo=tuple(todo))

    def _observed(self, view: PoolView) -> list[Act]:
        with ExitStack() as stack:
            if not self.rules.call_seconds:
                stack.enter_context(mock.patch.object(life, "CALL_SECONDS", 0.0))
            found = life.observe(view, NOW)
        strangers = found.strangers if self.rules.strangers_go else ()
        return [*writes(found.changed.values()), *(do("delete", number_of(known.name)) for known in strangers)]

    def _wants(self, w: Pool, who: int, scaler: Scaler) -> Step[Pool]:
        """An intent under a name that is free, if one is; and the next thing."""
        number = free_name(w)
        if number is None:
            return Step(f"s{who}: no name", self._with(w, who, scaler))
        intent = Machine(MachineState.WANTED)
        if self.rules.intent_first:
            return self._writes(w, who, scaler._replace(old=without(scaler.old, number)), number, intent)
        todo = (do("call", number), do("write", number, intent))
        return Step(f"s{who}: m{number}", self._with(w, who, scaler._replace(todo=(*todo, *scaler.todo))))

    def _asks(self, w: Pool, who: int, scaler: Scaler, number: int) -> Step[Pool]:
        """The write before a call; the call follows if it was made."""
        before = scaler.seen[number]
        name = number
        if before.asked != NEVER and not self.rules.names_of_intents:
            name = free_name(w) or number
        record = essence(life.asked(record_of(number, before), NOW))
        if not self.rules.taken_first:
            record = record._replace(created=0)
        what = "call" if before.asked == NEVER else "call again"
        call = scaler._replace(todo=(do(what, name, record), *scaler.todo))
        if not self.rules.asked_first:
            return Step(f"s{who}: unasked m{number}", self._with(w, who, call))
        if number in scaler.old:
            return self._writes(w, who, scaler, number, record)
        calls = tuple(Call(known.age, last=False) for known in w.calls[number])
        return self._writes(w._replace(calls=put(w.calls, number, calls)), who, call, number, record)

    def _writes(self, w: Pool, who: int, scaler: Scaler, number: int, record: Machine) -> Step[Pool]:
        """A write on condition of what was read; the scaler knows then what lies there."""
        if number in scaler.old:
            known = scaler._replace(seen=put(scaler.seen, number, w.records[number]), old=without(scaler.old, number))
            return Step(f"s{who}: m{number} was changed", self._with(w, who, known))
        breaks = FORGOTTEN if record.state == MachineState.GONE and self._may_come(w, number) else ""
        scalers = tuple(s._replace(old=(*without(s.old, number), number)) if s.seen else s for s in w.scalers)
        w = w._replace(records=put(w.records, number, record), scalers=scalers)
        after = self._with(w, who, scaler._replace(seen=put(scaler.seen, number, record)))
        return Step(f"s{who}: m{number} {record}", after, breaks=breaks)

    def _stores_reply(self, w: Pool, who: int, scaler: Scaler, number: int) -> Step[Pool]:
        """A write of the newest record, whoever wrote it."""
        known = scaler._replace(seen=put(scaler.seen, number, w.records[number]), old=without(scaler.old, number))
        record = None if w.records[number] == NO else record_of(number, w.records[number])
        if (noted := life.created(record, "", NOW)) is None:
            return Step(f"s{who}: m{number} was given up", self._with(w, who, known))
        return self._writes(w, who, known, number, essence(noted))

    def _may_come(self, w: Pool, number: int) -> bool:
        about_to = any(
            what in ("call", "call again") and about == number and not (self.rules.call_at_once and record.asked > 0)
            for scaler in w.scalers
            for what, about, record in scaler.todo
        )
        return w.there[number] not in ("", "again") or any(call.last for call in w.calls[number]) or about_to

    def _view(self, want: int, scaler: Scaler) -> PoolView:
        age = scaler.age if self.rules.fresh_list else 0
        listed = scaler.listed if scaler.answered else None if self.rules.silence else ()
        return view_of(self.scope, scaler.seen, listed, scaler.listed, age, want)
