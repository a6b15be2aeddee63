"""The scaler's code with one rule switched off: each must be caught."""

from __future__ import annotations

import math
from dataclasses import replace as replaced
from typing import Any

from msgspec.structs import replace

from fray_agents.provisioning import look, scaler
from fray_coordinator.protocol.scaling import machines, planning
from fray_coordinator.protocol.scaling.provisioning import account_of
from tests.simulation.broken_code import Swap, Variants

VARIANTS = Variants()
variant = VARIANTS.variant


# --- the life of a machine


@variant
def strangers_stay() -> list[Swap]:
    """What no record knows is left alone."""
    real = look.observe
    return [(look, "observe", lambda *given: replaced(real(*given), strangers=()))]


@variant
def machines_that_never_boot_stay() -> list[Swap]:
    """One that is ready, and never has an agent, is waited for."""
    return [(machines, "BOOT_SECONDS", math.inf)]


@variant
def unfit_machines_stay() -> list[Swap]:
    """One whose agents take no work is waited for."""
    return [(machines, "UNFIT_SECONDS", math.inf)]


@variant
def waiting_requests_are_not_withdrawn() -> list[Swap]:
    """A request that waits for capacity is waited for, though another zone may be asked."""
    return [(look, "withdrawn", lambda view, now: ({}, dict(view.zones)))]


@variant
def what_the_pool_says_is_in_force_at_once() -> list[Swap]:
    """Where the pool had machines nobody looks any more."""
    return [(scaler, "accounts", lambda said, left, known: {account_of(said): said} if said else {})]


@variant
def machines_are_where_their_pool_was_at_the_last_look() -> list[Swap]:
    """What the records say of it is not read."""
    real = scaler.accounts
    return [(scaler, "accounts", lambda said, left, known: real(said, left, ()))]


@variant
def calls_under_way_are_not_waited_for() -> list[Swap]:
    """What is not listed right after its call will not come."""
    return [(machines, "CALL_SECONDS", 0.0)]


@variant
def silence_is_an_empty_list() -> list[Swap]:
    """A provider that does not answer has no machines."""
    real = look.PoolLook._list

    async def told(self: look.PoolLook) -> Any:
        return await real(self) or ()

    return [(look.PoolLook, "_list", told)]


@variant
def nothing_is_deleted() -> list[Swap]:
    """The provider is not told that a machine goes."""
    return [(look, "to_delete", lambda view: [])]


@variant
def replies_are_not_stored() -> list[Swap]:
    """That a provider has taken a request is found out by its list."""
    return [(look, "created", lambda machine, operation, now: machine)]


@variant
def asked_for_without_a_write() -> list[Swap]:
    """The call is made, and the record says so afterwards."""
    return [(look, "asked", lambda machine, now: machine)]


# --- the bounds of a pool


@variant
def a_pool_may_have_any_number() -> list[Swap]:
    """Neither `max` nor the price counts."""
    real = planning._within_bounds

    def within(view: Any, orders: Any) -> Any:
        return real(replaced(view, spec=replace(view.spec, max=99, max_hourly_cost=None)), orders)

    return [(planning, "_within_bounds", within), (look, "confirmed", lambda view, now: {})]


@variant
def intents_are_not_confirmed() -> list[Swap]:
    """Whoever has written intents asks for them, whatever others have written meanwhile."""
    return [(look, "confirmed", lambda view, now: {})]


@variant
def the_least_is_not_kept() -> list[Swap]:
    """A pool without work has no machine."""
    real = look.plan
    return [(look, "plan", lambda view, now: real(replaced(view, spec=replace(view.spec, min=0)), now))]


@variant
def idle_machines_stay() -> list[Swap]:
    """Nothing is released because nobody needs it."""
    return [(planning, "_released", lambda *given: {})]
