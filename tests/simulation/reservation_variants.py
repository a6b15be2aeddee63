"""The real code with one rule about reservations and launch groups switched off: each makes a test fail."""

from __future__ import annotations

from typing import Any

from fray_agents.agent import private_pools
from fray_agents.agent.private_pools import ReservationRooms
from fray_coordinator.jobs import notifications
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.placements import reservations as decisions, reservations as private_rooms
from fray_coordinator.reconcile.placement_repair import ReservationRepair
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import ReservationRecord
from tests.simulation.broken_code import Swap, Variants, everywhere

VARIANTS = Variants()
rule = VARIANTS.rule


@rule(25, "tests/unit/test_reservation_rooms.py::test_a_group_starts_all_at_once_or_waits_as_one")
def jobs_start_before_their_reservation_is_held() -> list[Swap]:
    """An agent with room for a bundle looks for jobs in it at once."""

    def is_open(held: Any) -> bool:
        return held.owner.kind == "reservation" and any(bundle.taken for bundle in held.bundles)

    return everywhere(private_pools.is_open, is_open)


@rule(
    26, "tests/unit/test_reservation_rooms.py::test_the_bundles_of_a_dead_host_move_to_another_and_its_job_runs_there"
)
def lost_bundles_are_not_replaced() -> list[Swap]:
    """A held reservation keeps the members that it was held with."""
    return everywhere(decisions.with_members, lambda *given: None)


@rule(27, "tests/unit/test_reservation_rooms.py::test_a_bundle_that_is_another_s_by_now_is_kept_while_its_job_runs")
def bundles_are_freed_while_their_jobs_run() -> list[Swap]:
    """An agent frees a bundle as soon as the record names another agent for it."""

    def give_up(self: ReservationRooms, held: Any, mine: tuple[int, ...]) -> None:
        held.bundles = tuple(bundle for bundle in held.bundles if bundle.number in mine)
        self._leases.changed.set()

    return [(ReservationRooms, "_give_up", give_up)]


@rule(28, "tests/unit/test_reservation_rooms.py::test_a_small_job_of_a_group_does_not_sit_in_the_bundle_of_a_large_one")
def jobs_of_a_group_take_any_of_its_bundles() -> list[Swap]:
    """A job of a group takes any bundle that it fits into."""
    return [
        *everywhere(private_pools.jobs_bound, lambda *given: {""}),
        *everywhere(private_rooms.pool_of_job, lambda pool, job: pool),
    ]


@rule(
    28,
    "tests/unit/test_reservation_rooms.py::"
    "test_the_bundles_of_a_group_s_jobs_are_free_as_they_end_and_the_group_with_the_last",
)
def bundles_of_ended_jobs_are_kept() -> list[Swap]:
    """A group has all of its bundles until the last of its jobs has ended."""
    real = decisions.units_of
    return everywhere(real, lambda record, live, used, done=(), *more: real(record, live, used, (), *more))


@rule(
    29,
    "tests/unit/test_reservations.py::test_ending_a_reservation_stops_its_waiting_jobs_and_leaves_no_index_entry",
)
def jobs_of_an_ended_reservation_are_not_stopped() -> list[Swap]:
    """The jobs of a reservation that has ended are not stopped."""

    async def stop_left(*given: Any) -> None:
        return

    return everywhere(reservations.stop_left, stop_left)


@rule(30, "tests/unit/test_reservations.py::test_a_group_s_record_comes_last_and_names_all_of_its_jobs")
def the_record_of_a_group_is_written_first() -> list[Swap]:
    """The group may start before all of its jobs exist."""
    real = notifications.enter

    async def enter(core: Any, record: Any, again: bool = False) -> None:
        await real(core, record, again)
        if isinstance(record, ReservationRecord):
            await core.records.write(ReservationKeys.key(record.id), ReservationRecord, record, None)

    return everywhere(real, enter)


@rule(30, "tests/unit/test_reservations.py::test_a_submitter_that_wakes_after_it_was_given_up_starts_nothing")
def a_late_submitter_can_still_create_its_group() -> list[Swap]:
    """The jobs of a submitter that seems gone are stopped, but the group's name stays free for it."""

    async def give_up(self: ReservationRepair, reservation: str, inside: Any, entry: Any) -> None:
        for job in inside:
            await reservations.stopping.stop(self.core, job.job, "its submitter was gone")

    return [(ReservationRepair, "_give_up", give_up)]


@rule(31, "tests/unit/test_reservations.py::test_a_group_of_which_a_job_ends_before_it_is_held_is_void")
def a_group_starts_although_one_of_its_jobs_has_ended() -> list[Swap]:
    """A group whose job ended early waits for room, and starts the others."""
    real = decisions.end_reason

    def end_reason(record: ReservationRecord, done: Any, *given: Any) -> str:
        return real(record, () if record.state == "forming" else done, *given)

    return everywhere(real, end_reason)


@rule(
    36,
    "tests/unit/test_reservations.py::"
    "test_a_reservation_that_is_renewed_while_it_is_being_ended_goes_on_and_a_release_ends_it_anyway",
)
def renewals_are_not_seen() -> list[Swap]:
    """A reservation ends by what was read of it before, although it was renewed since."""
    real = decisions.ended
    return everywhere(real, lambda record, now, reason, seen=None: real(record, now, reason))
