"""The real code with one rule about jobs switched off: all must be caught."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from msgspec.structs import replace

from fray_agents.agent.leases import Leases
from fray_agents.tasks import upload
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.jobs import claiming, commit as commit_service, pending_index
from fray_coordinator.jobs.claiming import Claimed, NotClaimed
from fray_coordinator.persist import persist
from fray_coordinator.protocol import commit, retries, scheduling, stopping
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store import root_watch, store as store_module
from fray_coordinator.store.interface import (
    ANY,
    Applied,
    Rejected,
    Superseded,
)
from fray_coordinator.store.records import Records, Stored, UpdateResult
from fray_layouts import codec, work_keys
from fray_layouts.records import JobRecord
from fray_layouts.states import ExitKind
from tests.simulation.broken_code import Swap, Variants, everywhere

VARIANTS = Variants()
variant = VARIANTS.variant


# --- the store


@variant
def no_read_back() -> list[Swap]:
    """A write whose precondition fails counts as rejected, without reading the object."""

    def judge(current: Any, data: bytes, expect: Any, op: str | None) -> Any:
        still = current.version if current else store_module.ABSENT
        return None if expect is ANY or expect == still else Rejected(current)

    return everywhere(store_module.outcome_of_write, judge)


@variant
def read_back_without_operation_ids() -> list[Swap]:
    """If the object has changed since the reply was lost, the write counts as applied."""

    def judge(current: Any, data: bytes, expect: Any, op: str | None) -> Any:
        still = current.version if current else store_module.ABSENT
        if expect is ANY or expect == still:
            return None
        return Applied(current.version, current.updated) if current else Rejected(None)

    return everywhere(store_module.outcome_of_write, judge)


@variant
def superseded_taken_for_applied() -> list[Swap]:
    """A write that was applied and then overwritten counts as the current state."""
    real = store_module.outcome_of_write

    def judge(*given: Any) -> Any:
        outcome = real(*given)
        if isinstance(outcome, Superseded) and outcome.current is not None:
            return Applied(outcome.current.version, outcome.current.updated)
        return outcome

    return everywhere(real, judge)


@variant
def unknown_fields_are_dropped() -> list[Swap]:
    """A record is written without the fields that this version does not know."""
    real = codec.encode
    return [(codec, "encode", lambda record, raw=None: real(record))]


# --- claims


@variant
def unconditional_claim() -> list[Swap]:
    """A claim is written without a condition."""
    real = Records.write

    async def write(self: Records, key: str, kind: Any, wanted: Any, current: Any, *more: Any) -> Any:
        if kind is not JobRecord or current is None or (current.record.status, wanted.status) != ("pending", "running"):
            return await real(self, key, kind, wanted, current, *more)
        body = codec.successor(wanted, self._rng.unique_id(), current.record)
        outcome = await self._store.put(key, codec.encode(body, current.raw), ANY, body.op)
        return UpdateResult(Stored(key, body, current.raw, getattr(outcome, "version", ""), self._store.now()), True, 0)

    return [(Records, "write", write)]


@variant
def entry_deleted_at_the_claim() -> list[Swap]:
    """The index entry is deleted at the claim, before any beat lists the job."""
    real = claiming.try_claim

    async def try_claim(core: Any, entry: Any, *given: Any, **more: Any) -> Any:
        answer = await real(core, entry, *given, **more)
        if isinstance(answer, Claimed):
            await pending_index.delete_entry(core, entry)
        return answer

    return everywhere(real, try_claim)


@variant
def unresolved_claims_dropped() -> list[Swap]:
    """A claim without an answer counts as not made."""
    real = claiming.try_claim

    async def try_claim(*given: Any, **more: Any) -> Any:
        try:
            return await real(*given, **more)
        except StoreUnavailable:
            return NotClaimed(None, 0)

    return everywhere(real, try_claim)


@variant
def entries_without_attempt() -> list[Swap]:
    """A job has one entry for all attempts."""
    real = scheduling.entry_of
    return everywhere(real, lambda job: dataclasses.replace(real(job), attempt=1))


@variant
def unresolved_claims_not_listed() -> list[Swap]:
    """A beat lists only jobs that are certainly held, and the entry is deleted at the claim's reply."""
    real = Leases.holdings
    at_the_answer = everywhere(claiming.try_claim, entry_deleted_at_the_claim()[0][2])
    return [
        (Leases, "holdings", lambda self: {j: h for j, h in real(self).items() if h.phase != "claiming"}),
        *at_the_answer,
    ]


@variant
def failed_claims_stay_reserved() -> list[Swap]:
    """The room for a claim stays reserved when another agent has won."""
    real = Leases.remove
    return [(Leases, "remove", lambda self, held: None if held.phase == "claiming" else real(self, held))]


# --- endings


@variant
def no_fencing() -> list[Swap]:
    """A former holder may end a job that another agent holds now."""
    return [(commit, "holds_attempt", lambda job, attempt, agent: job is not None and job.status == Status.RUNNING)]


@variant
def commit_discarded_on_any_rejection() -> list[Swap]:
    """A rejected commit means that the lease was lost."""
    real = commit_service.end_attempt

    async def end_attempt(core: Any, held: Any, agent: str, ending: Any, *more: Any) -> Any:
        wanted = commit.end_of_attempt(held.record, held.record.attempt, agent, ending, core.now(), core.settings)
        written = await core.records.write(held.key, JobRecord, wanted, held)
        return await real(core, held, agent, ending, *more) if written.wrote else None

    return everywhere(real, end_attempt)


@variant
def commit_before_outputs() -> list[Swap]:
    """Logs are stored during the commit, not before it."""
    real = upload.upload_logs

    async def ship_logs(core: Any, job: Any, replica: int, chunks: Any, *more: Any) -> int:
        sealed = [chunk async for chunk in chunks]

        async def again() -> Any:
            for chunk in sealed:
                yield chunk

        asyncio.get_running_loop().create_task(real(core, job, replica, again(), *more))
        return sealed[-1][0] if sealed else 0

    return everywhere(real, ship_logs)


@variant
def budgets_swapped() -> list[Swap]:
    """A preemption counts as a failure, and a failure as a preemption."""
    preempted = retries._preempted
    return [
        (retries, "_preempted", retries._failed),
        (
            retries,
            "_failed",
            lambda *given, restart=False: preempted(*given[:5]),
        ),
    ]


@variant
def hopeless_environments_are_tried_again() -> list[Swap]:
    """An environment that no host can build counts as any other failure."""
    real = retries._failed

    def failed(job: Any, end: Any, *given: Any) -> Any:
        return real(job, replace(end, kind=ExitKind.EXITED), *given)

    return everywhere(real, failed)


@variant
def deaths_of_agents_are_not_counted() -> list[Swap]:
    """A job that kills its hosts is started again without limit."""
    real = commit.requeue_lost

    def requeue_lost(job: Any, *given: Any) -> Any:
        return real(replace(job, agent_deaths=0), *given)

    return everywhere(real, requeue_lost)


@variant
def a_requeue_forgets_the_stop() -> list[Swap]:
    """A requeued job is no longer marked to be stopped."""
    real = commit.requeue_lost

    def requeue_lost(job: Any, *given: Any) -> Any:
        return real(replace(job, stop=None), *given)

    return everywhere(real, requeue_lost)


@variant
def a_pending_job_waits_for_its_stop() -> list[Swap]:
    """Stopping a pending job only sets the flag, which the agent that claims it ignores."""
    real = stopping.request_stop

    def request_stop(job: Any, now: float, reason: str, by: str = "user") -> Any:
        if job.status == Status.PENDING:
            return replace(job, stop=stopping.StopRequest(at=now, reason=reason, by=by)) if job.stop is None else None
        return real(job, now, reason, by)

    return everywhere(real, request_stop)


@variant
def a_result_complete_before_the_stop_is_discarded() -> list[Swap]:
    """A stop wins over a result that was complete before it."""
    real = commit.end_of_attempt

    def decide(job: Any, attempt: int, agent: str, ending: Any, now: float, settings: Any) -> Any:
        return real(job, attempt, agent, commit.AttemptEnd(ending.exit, ending.result, False), now, settings)

    return everywhere(real, decide)


@variant
def a_result_complete_within_the_grace_is_discarded() -> list[Swap]:
    """A task that got SIGTERM counts as preempted, even if it succeeded."""
    real = commit.end_of_attempt

    def decide(job: Any, attempt: int, agent: str, ending: Any, *more: Any) -> Any:
        cut_short = ending.exit.kind == "success" and not ending.complete_before_stop
        end = commit.AttemptEnd(replace(ending.exit, kind="preempted")) if cut_short else ending
        return real(job, attempt, agent, end, *more)

    return everywhere(real, decide)


@variant
def an_outage_is_an_error() -> list[Swap]:
    """A request that gets no answer is given up at once."""

    async def once(core: Any, act: Any, *through: Any, **limits: Any) -> Any:
        return await act()

    return everywhere(persist, once)


@variant
def failures_count_as_preemptions() -> list[Swap]:
    """A job that fails is run again and again, as if it were preempted."""
    preempted = retries._preempted
    return [
        (
            retries,
            "_failed",
            lambda *given, restart=False: preempted(*given[:5]),
        )
    ]


@variant
def preemptions_count_as_failures() -> list[Swap]:
    """Whatever ends an attempt spends the failure budget."""
    return [(retries, "_preempted", retries._failed)]


@variant
def preemptions_are_not_counted() -> list[Swap]:
    """A job may be preempted for ever."""
    real = retries._preempted
    return [(retries, "_preempted", lambda job, *given: real(replace(job, preemptions=job.preemptions - 1), *given))]


@variant
def a_requeue_keeps_the_attempt() -> list[Swap]:
    """The next attempt has the number of the one before."""
    real = retries._requeue
    return [(retries, "_requeue", lambda job, *given: replace(real(job, *given), attempt=job.attempt))]


@variant
def results_are_named_after_the_job() -> list[Swap]:
    """All attempts put their result under one name, which keeps the first."""
    real = work_keys.WorkKeys.result
    first = staticmethod(lambda job, attempt, replica: real(job, 1, replica))
    return [(work_keys.WorkKeys, "result", first), (upload, "MAX_INLINE_BYTES", 0)]


@variant
def outputs_are_named_after_the_job() -> list[Swap]:
    """All attempts put their outputs under one name, which keeps the first."""
    real = work_keys.WorkKeys.outputs
    return [(work_keys.WorkKeys, "outputs", staticmethod(lambda job, attempt, replica: real(job, 1, replica)))]


# --- the root


@variant
def the_identity_of_the_root_is_not_compared() -> list[Swap]:
    """Who finds another cluster at the root, or none, goes on with what is there."""
    return [(root_watch, "why_lost", lambda known, found, root: "")]


@variant
def the_root_is_not_confirmed_where_it_matters() -> list[Swap]:
    """Claims, submissions and conclusions from what is missing rely on a confirmation of the last half minute."""

    async def nothing(self: store_module.Store) -> None:
        return

    return [(store_module.Store, "confirm_root", nothing)]
