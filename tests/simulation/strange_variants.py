"""The real code with one rule about malformed objects, refusals and exceptions switched off: all must be caught."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from fray_agents.agent import predecessors
from fray_agents.agent.agent import Agent
from fray_agents.agent.pool_notices import PoolBell
from fray_agents.agent.problems import AgentProblems
from fray_coordinator import concurrency
from fray_coordinator.errors import StoreRefused, StoreUnavailable
from fray_coordinator.fsck import checker, object_checks
from fray_coordinator.protocol import heartbeat
from fray_coordinator.reconcile import reaper, repair
from fray_coordinator.reconcile.failure_detector import FailureDetector
from fray_coordinator.reconcile.reaper import UnreadableHolders
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store import records
from fray_coordinator.store.interface import NotModified
from fray_layouts import parsing
from fray_layouts.errors import FrayError, Malformed
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import AgentRecord
from tests.simulation.broken_code import Swap, Variants, everywhere
from tests.simulation.scenario import Perils

VARIANTS = Variants()
variant = VARIANTS.variant
where = VARIANTS.where


def strangers_only(*habits: str) -> list[Swap]:
    """A setting: every seed has strangers, and they do only this."""
    real = Perils.drawn

    def drawn(draw: random.Random, shares: dict[str, float], usual: dict[str, float]) -> Perils:
        return real(draw, dict.fromkeys(shares, 0.0) | {"strangers": 1.0}, dict.fromkeys(habits, 1.0))

    return [(Perils, "drawn", staticmethod(drawn))]


def a_flood() -> list[Swap]:
    """A setting: a flood of files, and no other such fault."""
    real = Perils.drawn

    def drawn(draw: random.Random, shares: dict[str, float], usual: dict[str, float]) -> Perils:
        return real(draw, dict.fromkeys(shares, 0.0) | {"flood": 1.0}, usual)

    return [(Perils, "drawn", staticmethod(drawn))]


# --- odd objects


@where(strangers_only("copy_record"))
def copies_are_taken_for_the_original() -> list[Swap]:
    """The code does not check whether a record is under its own name."""
    return [(records, "keys_of", lambda record: ())]


@where(strangers_only("spoil_pass"))
def json_may_be_as_deep_as_the_stack_allows() -> list[Swap]:
    """The decoder's error about depth reaches the caller."""

    def parse_json(data: bytes | str, deepest: int = 0) -> Any:
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise Malformed(str(error)) from None

    return everywhere(parsing.parse_json, parse_json)


@variant
def only_errors_of_ours_are_an_objects_own() -> list[Swap]:
    """An object that causes any other error ends the loop over all objects."""
    real = concurrency.map_concurrently

    async def map_noting_problems(items: Any, act: Any, problems: Any, name: Any = str, at_once: int = 16) -> list[Any]:
        async def guarded(item: Any) -> list[Any]:
            try:
                return [await act(item)]
            except StoreUnavailable:
                raise
            except FrayError as error:
                problems[name(item)] = str(error)
                return []

        return [result for results in await real(items, guarded, at_once) for result in results]

    deep = json_may_be_as_deep_as_the_stack_allows()
    return [*everywhere(concurrency.map_noting_problems, map_noting_problems), *deep]


@where(strangers_only("restore_job"))
def a_dropped_job_is_never_requeued() -> list[Swap]:
    """A job that its live holder does not list is left to it."""
    return [(reaper, "is_dropped", lambda *sightings: False)]


@variant
def what_one_beat_does_not_list_is_dropped() -> list[Swap]:
    """A holder whose first beat does not list the job counts as having dropped it."""

    def is_unlisted(job: str, held_since: float, holder: AgentRecord, now: float) -> bool:
        return job not in holder.holdings

    return [(repair, "is_unlisted", is_unlisted), (reaper, "is_dropped", lambda *sightings: True)]


@where(strangers_only("spoil_agent"))
def whose_record_cannot_be_read_lives_for_ever() -> list[Swap]:
    """A malformed record of an agent is left to people."""

    async def check(self: UnreadableHolders, agent: str) -> None:
        """Do nothing about it."""

    return [(UnreadableHolders, "check", check), (predecessors, "write_off", _nothing)]


@where(strangers_only("spoil_agent"))
def whose_record_cannot_be_read_is_dead_at_once() -> list[Swap]:
    """Such an agent is declared dead before it must have ended."""
    return [(reaper, "is_lost", lambda unchanged, settings: True)]


@where(strangers_only("hold_agent"))
def an_unknown_state_counts_as_dead() -> list[Swap]:
    """An agent whose record does not say "live" counts as ended."""
    return everywhere(heartbeat.is_fenced, lambda record: record is None or record.state != "live")


@where(strangers_only("hold_agent"))
def an_unknown_state_is_a_state_of_life() -> list[Swap]:
    """An agent whose record does not say that it has ended lives for ever."""
    return [(FailureDetector, "watched", FailureDetector.live)]


@where(a_flood())
def a_pass_waits_for_the_inbox() -> list[Swap]:
    """The pass ends only when all files of the inbox were processed, however many there are."""
    real = Reconciler._run_background

    async def serve(self: Reconciler, seconds: float | None = None) -> None:
        await real(self)

    return [(Reconciler, "_run_background", serve)]


async def _nothing(*given: object) -> None:
    """Do nothing."""


@variant
def fsck_passes_odd_objects_by() -> list[Swap]:
    """fsck skips objects that cannot be read."""
    looks = tuple(look for look in checker.CHECKS if look[0] is not object_checks.unusable_objects)
    return [(checker, "CHECKS", looks)]


# --- refusals


@variant
def a_refusal_ends_an_agent() -> list[Swap]:
    """One refused request counts as refused for ever."""
    real = AgentProblems.tolerated

    @contextmanager
    def tolerated(self: AgentProblems, action: str) -> Iterator[None]:
        refused: list[StoreRefused] = []
        with real(self, action):
            try:
                yield
            except StoreRefused as error:
                refused.append(error)
                raise
        if refused:
            raise refused[0]

    return [(AgentProblems, "tolerated", tolerated)]


@variant
def a_bell_is_asked_with_an_empty_version() -> list[Swap]:
    """An agent without a version of the doorbell sends an empty version, and looks for no work without an answer."""

    async def poll(self: PoolBell) -> None:
        pool = self.member.record.pool
        answer = await self.member.core.store.get_if_changed(PoolKeys.doorbell(pool), self._version or "")
        if answer is not None and not isinstance(answer, NotModified):
            self._version, self.rang_for_jobs = answer.version, True

    return [(PoolBell, "poll", poll)]


# --- exceptions


@variant
def an_agent_forgets_what_it_could_not_end() -> list[Swap]:
    """An attempt whose end could not be written is dropped, and its agent keeps running."""

    async def run(self: Agent, lease: Any) -> None:
        try:
            await self._attempt_runner.run(lease)
        finally:
            self.member.leases.remove(lease)
            self._claimer.wake.set()

    return [(Agent, "_run_attempts", run)]
