"""The scaler's code with one rule switched off: each must be caught."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace as replaced
from typing import Any

from msgspec.structs import replace

from fray_agents.provisioning import pool_run, scaler
from fray_coordinator.protocol.cluster_identity import why_not_here
from fray_coordinator.protocol.scaling import machines, planning
from fray_coordinator.protocol.scaling.provisioning import ScalingScope, account_of
from tests.simulation.broken_code import Swap, Variants, everywhere
from tests.simulation.machine_provider import Service

VARIANTS = Variants()
variant = VARIANTS.variant


def _with_late_calls(draw: random.Random, drawn: Callable[[random.Random], Service] = Service.drawn) -> Service:
    """A provider that executes most calls late."""
    return replaced(drawn(draw), late=0.6)


# --- the life of a machine


@variant
def strangers_stay() -> list[Swap]:
    """Machines that are gone by their records are not deleted."""
    real = pool_run.observe
    return [(pool_run, "observe", lambda *given: replaced(real(*given), strangers=()))]


@variant
def machines_without_a_record_go() -> list[Swap]:
    """A machine whose record is missing is taken for one that is gone, and deleted."""
    return [(machines, "_is_left_over", lambda view, listed: True)]


@variant
def a_copy_of_a_root_is_scaled() -> list[Swap]:
    """Who opens a copy of a root works with it as if it were the cluster."""
    return everywhere(why_not_here, lambda settings, address, root: "")


@VARIANTS.rule(0, "tests/unit/test_scaling_scope.py::test_what_others_write_beside_a_described_pool_opens_nothing")
def everybody_scales_every_pool() -> list[Swap]:
    """Who scales a pool scales all others in the bucket, too, with the programs that their records name."""
    return [(ScalingScope, "among", lambda self, known: self.pools | frozenset(known))]


@variant
def machines_that_never_boot_stay() -> list[Swap]:
    """The scaler waits for a machine that is ready but never gets an agent."""
    return [(machines, "BOOT_SECONDS", math.inf)]


@variant
def unfit_machines_stay() -> list[Swap]:
    """The scaler waits for a machine whose agents take no work."""
    return [(machines, "UNFIT_SECONDS", math.inf)]


@variant
def waiting_requests_are_not_withdrawn() -> list[Swap]:
    """The scaler waits for a request without capacity, although it could ask another zone."""
    return [(pool_run, "withdrawn", lambda view, now: ({}, dict(view.zones)))]


@variant
def what_the_pool_says_is_in_force_at_once() -> list[Swap]:
    """The scaler no longer lists the place where the pool had machines before."""
    return [(scaler, "accounts", lambda said, left, known: {account_of(said): said} if said else {})]


@variant
def machines_are_where_their_pool_was_in_the_last_run() -> list[Swap]:
    """The scaler ignores the place in the machines' records."""
    real = scaler.accounts
    return [(scaler, "accounts", lambda said, left, known: real(said, left, ()))]


@VARIANTS.where([(Service, "drawn", staticmethod(_with_late_calls))])
def calls_under_way_are_not_waited_for() -> list[Swap]:
    """A machine that is not listed right after its call counts as never made."""
    return [(machines, "CALL_SECONDS", 0.0)]


@variant
def silence_is_an_empty_list() -> list[Swap]:
    """A provider that does not answer counts as having no machines."""
    real = pool_run.PoolRun._list

    async def told(self: pool_run.PoolRun) -> Any:
        return await real(self) or ()

    return [(pool_run.PoolRun, "_list", told)]


@variant
def nothing_is_deleted() -> list[Swap]:
    """The scaler does not delete machines at the provider."""
    return [(pool_run, "to_delete", lambda view: [])]


@variant
def replies_are_not_stored() -> list[Swap]:
    """The reply to a request is not stored; only the provider's list shows the machine."""
    return [(pool_run, "created", lambda machine, operation, now: machine)]


@variant
def asked_for_without_a_write() -> list[Swap]:
    """The call is made before the record is written."""
    return [(pool_run, "asked", lambda machine, now: machine)]


# --- the bounds of a pool


@variant
def a_pool_may_have_any_number() -> list[Swap]:
    """Neither `max` nor the price counts."""
    real = planning._within_bounds

    def within(view: Any, orders: Any) -> Any:
        return real(replaced(view, spec=replace(view.spec, max=99, max_hourly_cost=None)), orders)

    return [(planning, "_within_bounds", within), (pool_run, "confirmed", lambda view, now: {})]


@variant
def intents_are_not_confirmed() -> list[Swap]:
    """A scaler requests its intents, even if others have written more meanwhile."""
    return [(pool_run, "confirmed", lambda view, now: {})]


@variant
def the_least_is_not_kept() -> list[Swap]:
    """A pool without work has no machine."""
    real = pool_run.plan
    return [(pool_run, "plan", lambda view, now: real(replaced(view, spec=replace(view.spec, min=0)), now))]


@variant
def idle_machines_stay() -> list[Swap]:
    """Machines are not removed when nobody needs them."""
    return [(planning, "_released", lambda *given: {})]
