"""Invariants of reservations and launch groups, checked on every write of their records and of jobs in them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fray_coordinator.protocol.transitions import Status
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import JobRecord, ReservationRecord
from fray_layouts.states import ReservationState
from tests.simulation.effects import Run
from tests.simulation.gang_invariants import take
from tests.simulation.invariants import Broken, told, told_placement
from tests.simulation.watching import CLOCKS_DIFFER

if TYPE_CHECKING:
    from tests.simulation.gang_watching import GangWatch
    from tests.simulation.watching import Change

_NEXT = {
    None: (ReservationState.FORMING, ReservationState.ENDED),
    ReservationState.FORMING: (ReservationState.FORMING, ReservationState.HELD, ReservationState.ENDED),
    ReservationState.HELD: (ReservationState.HELD, ReservationState.ENDED),
    ReservationState.ENDED: (ReservationState.ENDED,),
}


def told_reservation(record: ReservationRecord | None) -> str:
    """The reservation's state in a few words."""
    if record is None:
        return "deleted"
    jobs = [part.job for part in record.parts if part.job]
    return f"{record.kind} {record.state} {jobs} {told_placement(record.placement)} {record.reason}".rstrip()


def what_is_held_stays_held(w: GangWatch, c: Change) -> None:
    before = c.before.state if c.before is not None else None
    if c.after is not None and c.after.state not in _NEXT[before]:
        message = f"{c.name}: {told_reservation(c.before)} became {told_reservation(c.after)}"
        raise Broken("what is held stays held until it ends", message, c.name)


def a_reservation_is_held_with_every_vote(w: GangWatch, c: Change) -> None:
    before, after = c.before, c.after
    if before is None or after is None or (before.state, after.state) != ("forming", "held"):
        return
    name = "a reservation is held with every vote"
    bundles = sorted(number for member in after.placement.members for number in member.bundles)
    if bundles[: after.low] != list(range(after.low)):
        raise Broken(name, f"{c.name} is held with the bundles {bundles}, and needs {after.low}", c.name)
    for member in after.placement.members:
        vote = (c.name, 1, after.placement.round, member.agent, tuple(member.bundles))
        if vote not in w.votes and member.agent not in w.world.strangers.harmed:
            message = f"{c.name}: {told_reservation(after)}, and {member.agent} has not voted"
            raise Broken(name, message, c.name, member.agent)


def what_is_renewed_goes_on(w: GangWatch, c: Change) -> None:
    """A reservation ends for lack of a renewal only if the record that is overwritten has run out."""
    before, after = c.before, c.after
    if before is None or after is None or before.expires_at is None or before.state == after.state:
        return
    left = before.expires_at - w.world.storage.clock.wall()
    if after.state == ReservationState.ENDED and "not renewed" in after.reason and left > CLOCKS_DIFFER:
        message = f"{c.name} had {left:.0f} s left when it ended: {after.reason}"
        raise Broken("a reservation that is renewed goes on", message, c.name)


def a_group_starts_as_one(w: GangWatch, c: Change) -> None:
    """No job in a private pool starts before its owner was held, or is claimed after its owner has ended."""
    job: JobRecord | None = c.after
    if job is None or job.status != Status.RUNNING or (c.before is not None and c.before.status == Status.RUNNING):
        return
    owner = ReservationKeys.of_pool(job.spec.pool)
    if owner and owner not in w.held:
        message = f"{c.name} is {told(job)}, and {owner} is {told_reservation(w.reservations.get(owner))}"
        raise Broken("a group starts as one", message, c.name, owner)


def a_bundle_has_one_job(w: GangWatch, run: Run) -> None:
    """Tasks of a reservation run in its bundles and need no more room; each job of a group runs in its own bundle."""
    job = w.watching.jobs.get(run.job)
    owner = ReservationKeys.of_pool(job.spec.pool) if job is not None else ""
    agent = w.world.agents[run.agent]
    room = agent.member.leases.placements.get(owner)
    if not owner or room is None or w.reservations.get(owner) is None:
        return
    taken: Counter[str] = Counter()
    for task in w.world.process_host(run.agent).running:
        other = w.watching.jobs.get(task.run.job)
        if task.run.agent == run.agent and other is not None and other.spec.pool == job.spec.pool:
            take(taken, other, 1)
    has = sum(bundle.shape.cpu for bundle in room.bundles if bundle.taken)
    if taken["cpu"] > has:
        message = f"{run.job} starts in {owner} under {run.agent}: {taken['cpu']} are used of {has}"
        raise Broken("a bundle has one job", message, run.job, owner, run.agent)


OF_RESERVATIONS = [what_is_held_stays_held, a_reservation_is_held_with_every_vote, what_is_renewed_goes_on]
OF_JOBS_INSIDE = [a_group_starts_as_one]
