"""The real code with one rule about actors switched off: all must be caught. Models cover rarer faults."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fray_agents.agent.attempt_runner import AttemptRunner
from fray_agents.agent.membership import Membership
from fray_coordinator.actors.checkpoints import CheckpointLog
from fray_coordinator.protocol import commit, naming
from fray_coordinator.protocol.naming import Checkpoint, HighWaterMark, NameHolder
from fray_coordinator.reconcile.removal import StaleEndpoints
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.records import Records, Stored, UpdateResult
from fray_layouts import codec
from fray_layouts.records import EndpointRecord, NameRecord, Record
from tests.simulation.broken_code import Swap, Variants, everywhere

VARIANTS = Variants()
variant = VARIANTS.variant


def _unconditional(kind: type[Record]) -> list[Swap]:
    """Records of this kind are written without a condition."""
    real = Records.write

    async def write(self: Records, key: str, of: Any, wanted: Any, current: Any, *more: Any) -> Any:
        if of is not kind:
            return await real(self, key, of, wanted, current, *more)
        body = codec.successor(wanted, self._rng.unique_id(), current.record if current else None)
        outcome = await self._store.put(key, codec.encode(body, {}), ANY, body.op)
        return UpdateResult(Stored(key, body, {}, getattr(outcome, "version", ""), self._store.now()), True, 0)

    return [(Records, "write", write)]


# --- names and endpoints


@variant
def names_without_conditions() -> list[Swap]:
    """A process that sees a free name writes itself into it, without a condition."""
    return _unconditional(NameRecord)


@variant
def endpoints_without_conditions() -> list[Swap]:
    """An endpoint is written without a condition."""
    return _unconditional(EndpointRecord)


@variant
def names_of_jobs_to_come_are_told() -> list[Swap]:
    """A lookup of an existing actor returns the name's job although that job does not exist yet."""
    real = naming.holder_of

    def hold_of(*given: Any) -> NameHolder:
        hold = real(*given)
        return NameHolder.HELD if hold is NameHolder.COMING else hold

    return everywhere(real, hold_of)


@variant
def callers_forget() -> list[Swap]:
    """Callers accept any server that answers."""
    return [(HighWaterMark, "accepts", lambda self, endpoint: True)]


@variant
def endpoints_are_left_to_their_servers() -> list[Swap]:
    """Neither the agent nor the repair removes the endpoint of a dead process."""

    async def remove(*given: Any) -> None:
        """Do nothing."""

    return [(StaleEndpoints, "remove", remove)]


# --- checkpoints


@variant
def fences_without_state() -> list[Swap]:
    """A fence is only a mark; the state is that of the last checkpoint below it, as long as that exists."""
    real = naming.fence

    def fence(*given: Any) -> Any:
        made = real(*given)
        return None if made is None else Checkpoint(made.number, made.attempt, made.writer, True, b"[]")

    return everywhere(real, fence)


@variant
def replies_before_checkpoints() -> list[Swap]:
    """Every third call is answered from memory, and stored only with the next checkpoint."""
    real = CheckpointLog.write

    async def write(self: CheckpointLog, state: bytes) -> None:
        if self.core.rng.random() < 0.7:
            await real(self, state)

    return [(CheckpointLog, "write", write)]


# --- restarts and trust


@variant
def stopped_actors_are_restarted() -> list[Swap]:
    """The holder's restart ignores a requested stop."""
    real = commit.end_of_attempt

    def ends(job: Any, attempt: int, agent: str, ending: Any, *more: Any) -> Any:
        if ending.restart and job is not None and job.stop is not None:
            return real(replace(job, stop=None), attempt, agent, ending, *more)
        return real(job, attempt, agent, ending, *more)

    return everywhere(real, ends)


@variant
def restarts_are_forgotten() -> list[Swap]:
    """The agent forgets the job when the attempt has ended."""
    real = AttemptRunner._run_attempt

    async def run_attempt(self: AttemptRunner, lease: Any) -> None:
        await real(self, lease)

    return [(AttemptRunner, "_run_attempt", run_attempt)]


@variant
def actors_live_through_outages() -> list[Swap]:
    """Actors get the outage grace, like other tasks."""
    real = Membership.task_deadline

    def deadline(self: Membership, job: Any) -> float:
        return real(self, replace(job, spec=replace(job.spec, outage="run")))

    return [(Membership, "task_deadline", deadline)]
