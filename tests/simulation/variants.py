"""The real code with one rule about jobs switched off, each way a cluster could have been built: all must be caught."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from msgspec.structs import replace

from fray_agents import shipping
from fray_agents.ledger import Ledger
from fray_coordinator import claims, endings, index, submit
from fray_coordinator.admission import Admission
from fray_coordinator.claims import Claimed, NotClaimed
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol import cascade, finish, inbox, retention, schedule, stop
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.records import Records, Stored, Update
from fray_coordinator.repair import Repair
from fray_coordinator.store import store as store_module
from fray_coordinator.store.api import ANY, Applied, Rejected, Superseded
from fray_layouts import codec
from fray_layouts.names import JobId
from fray_layouts.records import JobRecord
from tests.simulation.broken_code import Swap, Variants, everywhere

VARIANTS = Variants()
variant = VARIANTS.variant


# --- the store


@variant
def no_read_back() -> list[Swap]:
    """A write whose precondition fails was beaten by somebody else's, whatever lies there."""

    def judge(current: Any, data: bytes, expect: Any, op: str | None) -> Any:
        still = current.version if current else store_module.ABSENT
        return None if expect is ANY or expect == still else Rejected(current)

    return everywhere(store_module.judge, judge)


@variant
def read_back_without_operation_ids() -> list[Swap]:
    """If the name has changed since the write was in doubt, the write was what changed it."""

    def judge(current: Any, data: bytes, expect: Any, op: str | None) -> Any:
        still = current.version if current else store_module.ABSENT
        if expect is ANY or expect == still:
            return None
        return Applied(current.version, current.updated) if current else Rejected(None)

    return everywhere(store_module.judge, judge)


@variant
def superseded_taken_for_applied() -> list[Swap]:
    """A write that was applied and written over since counts as the current state."""
    real = store_module.judge

    def judge(*given: Any) -> Any:
        outcome = real(*given)
        if isinstance(outcome, Superseded) and outcome.current is not None:
            return Applied(outcome.current.version, outcome.current.updated)
        return outcome

    return everywhere(real, judge)


@variant
def unknown_fields_are_dropped() -> list[Swap]:
    """A record is written without what this version does not know."""
    real = codec.encode
    return [(codec, "encode", lambda record, raw=None: real(record))]


# --- claims


@variant
def unconditional_claim() -> list[Swap]:
    """A claim is written over whatever lies there."""
    real = Records.write

    async def write(self: Records, key: str, kind: Any, wanted: Any, current: Any) -> Any:
        if kind is not JobRecord or current is None or (current.record.status, wanted.status) != ("pending", "running"):
            return await real(self, key, kind, wanted, current)
        body = codec.successor(wanted, self._chance.token(16), current.record)
        outcome = await self._store.put(key, codec.encode(body, current.raw), ANY, body.op)
        return Update(Stored(key, body, current.raw, getattr(outcome, "version", ""), self._store.now()), True, 0)

    return [(Records, "write", write)]


@variant
def entry_deleted_at_the_claim() -> list[Swap]:
    """The index entry goes with the claim, before any beat lists it."""
    real = claims.try_claim

    async def try_claim(core: Any, entry: Any, *given: Any, **more: Any) -> Any:
        answer = await real(core, entry, *given, **more)
        if isinstance(answer, Claimed):
            await index.leave(core, entry)
        return answer

    return everywhere(real, try_claim)


@variant
def unresolved_claims_dropped() -> list[Swap]:
    """A claim without an answer counts as not made."""
    real = claims.try_claim

    async def try_claim(*given: Any, **more: Any) -> Any:
        try:
            return await real(*given, **more)
        except StoreUnavailable:
            return NotClaimed(None, 0)

    return everywhere(real, try_claim)


@variant
def entries_without_attempt() -> list[Swap]:
    """One entry a job, whatever its attempt."""
    real = schedule.entry_of
    return everywhere(real, lambda job: dataclasses.replace(real(job), attempt=1))


@variant
def unresolved_claims_not_listed() -> list[Swap]:
    """The beat lists only what is known to be held, and the entry goes at the claim's answer."""
    real = Ledger.holdings
    claiming = everywhere(claims.try_claim, entry_deleted_at_the_claim()[0][2])
    return [
        (Ledger, "holdings", lambda self: {j: h for j, h in real(self).items() if h.phase != "claiming"}),
        *claiming,
    ]


# --- endings


@variant
def no_fencing() -> list[Swap]:
    """Who ran a job may end it, whoever holds it now."""
    return [(finish, "holds", lambda job, attempt, agent: job is not None and job.status == Status.RUNNING)]


@variant
def commit_discarded_on_any_rejection() -> list[Swap]:
    """A rejected commit means that the lease was lost."""
    real = endings.end_attempt

    async def end_attempt(core: Any, held: Any, agent: str, ending: Any, *more: Any) -> Any:
        wanted = finish.finish(held.record, held.record.attempt, agent, ending, core.now(), core.settings)
        written = await core.records.write(held.key, JobRecord, wanted, held)
        return await real(core, held, agent, ending, *more) if written.wrote else None

    return everywhere(real, end_attempt)


@variant
def commit_before_outputs() -> list[Swap]:
    """Logs are shipped while the commit is on its way."""
    real = shipping.ship_logs

    async def ship_logs(core: Any, job: Any, task: Any) -> int:
        asyncio.get_running_loop().create_task(real(core, job, task))
        await asyncio.shield(task.exit)
        return int(task.script.chunks)

    return everywhere(real, ship_logs)


@variant
def budgets_swapped() -> list[Swap]:
    """A preemption counts as a failure, and a failure as a preemption."""
    preempted = finish._preempted
    return [
        (finish, "_preempted", finish._failed),
        (finish, "_failed", lambda job, end, now, settings, restart=False: preempted(job, end, now, settings)),
    ]


@variant
def deaths_of_agents_are_not_counted() -> list[Swap]:
    """A job that kills its host may take down a hundred."""
    real = finish.put_back

    def put_back(job: Any, dead: str, now: float, settings: Any) -> Any:
        return real(replace(job, agent_deaths=0), dead, now, settings)

    return everywhere(real, put_back)


@variant
def a_requeue_forgets_the_stop() -> list[Swap]:
    """A job that is put back is no longer to be stopped."""
    real = finish.put_back

    def put_back(job: Any, dead: str, now: float, settings: Any) -> Any:
        return real(replace(job, stop=None), dead, now, settings)

    return everywhere(real, put_back)


@variant
def a_pending_job_waits_for_its_stop() -> list[Swap]:
    """Stopping a pending job sets the flag and leaves the rest to whoever claims it, who looks at nothing."""
    real = stop.request_stop

    def request_stop(job: Any, now: float, reason: str, by: str = "user") -> Any:
        if job.status == Status.PENDING:
            return replace(job, stop=stop.Stop(at=now, reason=reason, by=by)) if job.stop is None else None
        return real(job, now, reason, by)

    return everywhere(real, request_stop)


@variant
def a_result_complete_before_the_stop_is_discarded() -> list[Swap]:
    """A stop wins over a result, whichever came first."""
    real = finish.finish

    def decide(job: Any, attempt: int, agent: str, ending: Any, now: float, settings: Any) -> Any:
        return real(job, attempt, agent, finish.Ending(ending.exit, ending.result, False), now, settings)

    return everywhere(real, decide)


@variant
def an_outage_is_an_error() -> list[Swap]:
    """What the store does not answer once is given up."""

    async def persist(core: Any, act: Any) -> Any:
        return await act()

    return everywhere(shipping.persist, persist)


# --- submission, children, inbox, retention


@variant
def a_reused_name() -> list[Swap]:
    """A job's id is its name and the minute."""
    return [(JobId, "fresh", staticmethod(lambda name, now, token: f"{name}-{int(now // 60)}"))]


@variant
def child_before_its_index_entry() -> list[Swap]:
    """The `children/` entry is written a moment after the child."""
    real = submit.enter_child

    async def enter_child(core: Any, job: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.5)
            await real(core, job)

        asyncio.get_running_loop().create_task(later())

    return everywhere(real, enter_child)


@variant
def no_cascade() -> list[Swap]:
    """Nobody asks whether a child's parent still runs."""
    return everywhere(cascade.verdict, lambda *given: cascade.Verdict.KEEP)


@variant
def no_repair() -> list[Swap]:
    """The pass repairs nothing."""

    async def run(self: Repair, live: Any) -> None:
        return None

    return [(Repair, "run", run)]


@variant
def admitted_without_a_second_look() -> list[Swap]:
    """A drop is admitted as it was read, whatever the inbox holds by then."""
    real = inbox.settle
    return everywhere(real, lambda job, version, now: real(job, job.inbox.version if job.inbox else None, now))


@variant
def every_reader_admits_a_drop() -> list[Swap]:
    """A drop's job gets a fresh id from whoever reads it."""
    real = inbox.record_of_drop
    drawn = iter(range(10**9))

    def record_of_drop(*given: Any) -> Any:
        job = real(*given)
        return replace(job, id=f"{job.id}x{next(drawn)}")

    return everywhere(real, record_of_drop)


@variant
def a_drop_is_removed_before_it_is_admitted() -> list[Swap]:
    """The file goes first, then its job is made."""
    real = Admission._admit

    async def admit(self: Admission, key: str, drop: Any, spec: Any) -> None:
        await self._take_away(key, drop.version)
        await real(self, key, drop, spec)

    return [(Admission, "_admit", admit)]


@variant
def parents_go_before_their_children() -> list[Swap]:
    """Retention does not ask for children."""
    real = retention.may_go

    def may_go(due: float, now: float, has_children: bool) -> bool:
        return real(due, now, False)

    return everywhere(real, may_go)
