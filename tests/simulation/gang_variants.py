"""The real code with one rule about gangs switched off. Seeds, or the named test, must catch each variant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as changed
from typing import Any

from msgspec.structs import replace

from fray_agents.agent import membership, placement_loop
from fray_agents.agent.held import HeldTask
from fray_agents.agent.leases import Leases
from fray_agents.agent.overcommit import make_room_for_parents
from fray_coordinator.jobs import commit
from fray_coordinator.placements.family_turns import FamilyTurns
from fray_coordinator.placements.scheduler import PlacementScheduler
from fray_coordinator.protocol.placements import assignment, gang_end, hosts, owners, rounds, votes
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.placements.votes import MemberAction, OwnerPhase
from fray_coordinator.protocol.transitions import Status
from fray_layouts.states import HoldingPhase
from tests.simulation.broken_code import Swap, Variants, everywhere

VARIANTS = Variants()
rule = VARIANTS.rule


# --- forming


@rule(1)
def each_attempt_counts_rounds_from_zero() -> list[Swap]:
    """A new attempt counts its rounds from 0."""
    real = votes.withdrawn
    return everywhere(real, lambda placement: replace(real(placement), round=0))


@rule(1)
def members_change_within_a_round() -> list[Swap]:
    """The pass changes members without raising the round."""
    real = rounds.next_round

    def next_round(placement: Any, known: Any, *given: Any) -> Any:
        found = real(placement, known, *given)
        return replace(found, round=max(known.round, 1)) if found is not None else None

    return everywhere(real, next_round)


@rule(2)
def votes_are_given_without_room() -> list[Swap]:
    """A bundle is listed even if there is no room for it."""

    def reserve(self: Leases, bundles: Any, host: Any) -> bool:
        for bundle in bundles:
            bundle.taken = True
        return True

    return [(Leases, "reserve", reserve)]


@rule(3, "tests/unit/test_placement_scheduler.py::test_only_votes_of_the_round_by_agents_that_live_count")
def votes_for_earlier_rounds_count() -> list[Swap]:
    """A vote for any earlier round counts."""
    real = rounds.vote_of

    def vote_of(owner: Owner, agent: Any, *phase: Any) -> Any:
        holding = agent.holdings.get(owner.id)
        of_now = replace(holding, round=owner.placement.round) if holding is not None else None
        holdings = agent.holdings | ({owner.id: of_now} if of_now is not None else {})
        return real(owner, replace(agent, holdings=holdings), *phase)

    return everywhere(real, vote_of)


@rule(4)
def votes_do_not_reserve_room() -> list[Swap]:
    """Until the gang starts, single jobs may take the room of a vote."""
    real = Leases._in

    def within(self: Leases, room: Any) -> Iterator[HeldTask]:
        voted = [p for p in self.placements.values() if p.phase == HoldingPhase.RESERVED]
        given = {id(bundle) for placement in voted for bundle in placement.bundles}
        return (task for task in real(self, room) if id(task) not in given)

    return [(Leases, "_in", within)]


@rule(5)
def votes_are_withdrawn_without_a_new_round() -> list[Swap]:
    """A vote is taken back silently."""
    real = votes.member_action
    released = {MemberAction.WITHDRAW: MemberAction.RELEASE}
    return everywhere(real, lambda *given: released.get(real(*given), real(*given)))


@rule(6)
def owners_start_with_one_vote_missing() -> list[Swap]:
    """A gang starts when one vote is missing."""
    real = rounds.missing_votes

    def missing(*given: Any) -> list[str]:
        found = real(*given)
        return found if len(found) > 1 else []

    return everywhere(real, missing)


@rule(7, "tests/unit/test_gang_attempts.py::test_the_next_attempt_waits_for_agents_that_list_the_last_one")
def attempts_do_not_wait_for_the_last_one_to_end() -> list[Swap]:
    """An attempt starts although agents still list an earlier one."""
    return everywhere(rounds.lingering, lambda *given: [])


@rule(
    7,
    "tests/unit/test_gang_attempts.py::test_a_process_that_cannot_be_killed_does_not_hold_the_next_attempt_for_ever",
)
def attempts_wait_for_the_last_one_without_limit() -> list[Swap]:
    """An attempt waits without limit for agents that list an earlier one."""
    return everywhere(rounds.waits_for_lingering, lambda *given: True)


@rule(8, "tests/unit/test_agent_placements.py::test_a_started_replica_runs_once_and_only_with_trust")
def replicas_start_without_trust() -> list[Swap]:
    """An agent that wakes up starts the replicas in its record, as if no time had passed."""
    return [(membership.Membership, "trusts", lambda self: True)]


@rule(8)
def replicas_start_before_their_gang() -> list[Swap]:
    """A member starts its replicas as soon as it has voted."""
    real = votes.member_action

    def member_action(voter: Any, owner: Owner, owner_phase: OwnerPhase, vote: Any, *more: Any) -> MemberAction:
        what = real(voter, owner, owner_phase, vote, *more)
        voted = vote is not None and vote.phase == HoldingPhase.RESERVED and owner_phase is OwnerPhase.FORMING
        return MemberAction.START if voted and what is MemberAction.NOTHING else what

    return everywhere(real, member_action)


@rule(10, "tests/unit/test_placement_scheduler.py::test_hosts_that_are_free_now_are_preferred_a_few_times")
def members_move_without_limit() -> list[Swap]:
    """A gang moves whenever other hosts are free."""
    return [(assignment, "MAX_MOVES", 10**9)]


@rule(11, "tests/unit/test_placement_scheduler.py::test_a_member_that_refuses_is_exchanged_for_this_attempt")
def agents_that_refuse_are_chosen_again() -> list[Swap]:
    """Members that can never have their bundles are chosen again."""
    return everywhere(rounds.refusals, lambda *given: [])


@rule(
    11,
    "tests/unit/test_placement_scheduler.py::test_a_member_that_shows_room_and_does_not_vote_is_exchanged_in_time",
)
def members_that_do_not_vote_stay_members() -> list[Swap]:
    """Members that show room and do not vote stay members."""
    return [(PlacementScheduler, "_slow", lambda *given: [])]


@rule(12)
def agents_without_these_rules_are_chosen() -> list[Swap]:
    """Any live agent may be a member."""
    real = hosts.host_view
    return everywhere(real, lambda agent, *given: real(replace(agent, supports_placements=True), *given))


@rule(16)
def owners_get_fewer_hosts_than_they_need() -> list[Swap]:
    """An owner gets the hosts that there are, even if they are too few."""
    real = assignment.needed_parts
    return everywhere(real, lambda owner: [changed(p, count=p.count - 1) for p in real(owner) if p.count > 1])


@rule(9)
def two_owners_get_the_same_hosts() -> list[Swap]:
    """Hosts that an earlier owner got are given to a later one as well."""
    return [(assignment._FreeRoom, "_take", lambda self, owner, members: None)]


@rule(16)
def gangs_of_slices_get_any_hosts() -> list[Swap]:
    """A gang of slices gets any hosts of the type."""
    real = owners._part

    def part(*given: Any) -> Any:
        return changed(real(*given), slices=0, spread=True)

    return everywhere(real, part)


# --- holds


@rule(13, "tests/unit/test_holds.py::test_later_jobs_have_only_the_room_that_is_not_kept")
def free_room_is_not_kept_for_waiting_gangs() -> list[Swap]:
    """An agent claims singles while a gang waits for its room."""

    def unreserved(self: Leases, room: Any = None, entry: Any = None) -> Any:
        return self.free(room)

    return [(Leases, "unreserved", unreserved)]


@rule(14, "tests/unit/test_holds.py::test_jobs_that_come_before_the_owner_go_first")
def room_is_kept_from_earlier_single_jobs() -> list[Swap]:
    """Room is kept for a gang also from single jobs that come earlier."""
    real = Leases.unreserved
    return [(Leases, "unreserved", lambda self, room=None, entry=None: real(self, room))]


@rule(15)
def the_end_of_the_backfill_window_moves() -> list[Swap]:
    """Later single jobs may use the room for the full time of the jobs that run there, whenever these were claimed."""
    real = rounds.next_round
    return everywhere(real, lambda placement, known, *given: real(replace(placement, until=None), known, *given))


# --- running and ending


@rule(17)
def members_do_not_watch_their_gang() -> list[Swap]:
    """A member looks at its running gangs once an hour."""
    return [(placement_loop, "RUNNING_POLLS", 3600)]


@rule(18)
def exits_are_not_stored() -> list[Swap]:
    """A member drops its gang without storing an exit."""

    async def store_exit(core: Any, job: Any, replica: int, left: Any) -> Any:
        return left

    return everywhere(commit.store_exit, store_exit)


@rule(19, "tests/unit/test_gang_end.py::test_a_member_of_an_attempt_that_is_over_writes_nothing")
def members_of_an_earlier_attempt_end_the_gang() -> list[Swap]:
    """A write about an attempt is made even if the record has moved on."""
    return everywhere(gang_end.runs_gang, lambda job, attempt, agent: job is not None and job.status == Status.RUNNING)


@rule(20)
def only_the_member_with_replica_0_writes_the_success() -> list[Swap]:
    """The member with replica 0 writes the end, if it sees all exits."""
    real = commit.end_member

    async def end_member(core: Any, held: Any, agent: str, own: Any) -> Any:
        return await real(core, held, agent, own) if 0 in gang_end.replicas_of(held.record, agent) else held

    return everywhere(real, end_member)


@rule(20)
def a_gang_succeeds_with_its_first_replica() -> list[Swap]:
    """The first member that succeeds writes the end, as if all replicas had succeeded."""
    real = gang_end.end_of_gang

    def end(job: Any, attempt: int, agent: str, exits: Any, *more: Any) -> Any:
        missing = set(range(job.spec.replicas)) - set(exits) if job and exits else ()
        return real(job, attempt, agent, exits | {n: exits[min(exits)] for n in missing}, *more)

    return [*everywhere(gang_end.is_whole, lambda job, exits: len(exits) > 0), *everywhere(real, end)]


@rule(21, "tests/unit/test_gang_commit.py::test_few_members_of_a_large_gang_write_that_one_has_failed")
def all_members_write_at_once() -> list[Swap]:
    """No member waits for its turn to end the gang."""
    return everywhere(commit._turn, lambda *given: 0.0)


@rule(22, "tests/unit/test_gang_commit.py::test_a_failure_that_meets_a_stop_ends_the_gang_once_all_have_ended")
def a_stopped_gang_is_requeued() -> list[Swap]:
    """A failed exit requeues the gang although it was to stop."""
    real = gang_end.end_of_gang
    return everywhere(real, lambda job, *given: real(replace(job, stop=None) if job else None, *given))


@rule(22, "tests/unit/test_gang_end.py::test_a_stopped_gang_ends_once_all_replicas_have_ended")
def a_gang_is_marked_stopped_at_the_first_exit() -> list[Swap]:
    """The first member that learns of the stop writes that the gang has stopped."""
    real = gang_end.end_of_gang

    def end(job: Any, attempt: int, agent: str, exits: Any, now: float, *more: Any) -> Any:
        if job is not None and job.stop is not None and gang_end.runs_gang(job, attempt, agent):
            return gang_end.stop_now(job, now, job.stop.reason, job.stop.by)
        return real(job, attempt, agent, exits, now, *more)

    return everywhere(real, end)


@rule(
    22,
    "tests/unit/test_neighbour_watch.py::test_a_gang_that_is_to_be_stopped_is_not_ended_while_a_silent_agent_may_run_its_replica",
)
def a_silent_member_ends_a_stopped_gang() -> list[Swap]:
    """A gang that is to be stopped has ended once a member's agent does not answer, though its replicas may run."""
    real = gang_end.gang_without
    return everywhere(
        real, lambda *given, **named: real(*given[:7], **{k: v for k, v in named.items() if k != "may_run"})
    )


@rule(23, "tests/unit/test_gang_repair.py::test_a_member_that_dies_after_its_part_ends_the_gang_if_all_others_have")
def stored_exits_are_ignored_when_a_member_dies() -> list[Swap]:
    """A gang is requeued when a member dies, whatever exits its replicas have stored."""
    real = gang_end.gang_without
    return everywhere(
        real, lambda job, attempt, agent, exits, *more, **named: real(job, attempt, agent, {}, *more, **named)
    )


@rule(19)
def preemptions_of_gangs_count_as_failures() -> list[Swap]:
    """Every end of a replica spends the failure budget."""
    real = gang_end.after_exit
    return everywhere(real, lambda job, end, *given: real(job, replace(end, kind="exited"), *given))


@rule(24, "tests/unit/test_agent_placements.py::test_a_replica_ends_with_the_trust_of_its_agent")
def replicas_outlive_the_trust_of_their_agent() -> list[Swap]:
    """A replica has the outage grace of single jobs."""
    return [(membership, "ends_with_trust", lambda spec: spec.actor)]


# --- families


@rule(32, "tests/unit/test_family_turns.py::test_a_child_that_is_kept_out_goes_first_and_the_gang_forms_after_it")
def families_never_go_first() -> list[Swap]:
    """An owner and a job that waits for its child wait for each other."""

    async def write(self: FamilyTurns, sight: Any, except_for: Any) -> list[Any]:
        return []

    return [(FamilyTurns, "write", write)]


@rule(33, "tests/unit/test_family_turns.py::test_a_child_that_is_kept_out_goes_first_and_the_gang_forms_after_it")
def votes_count_while_a_family_goes_first() -> list[Swap]:
    """An owner starts during a family's turn."""
    return [(rounds, "families_first", lambda placement: frozenset())]


@rule(34, "tests/unit/test_families.py::test_an_owner_is_not_given_room_that_its_ancestors_use")
def owners_get_room_that_their_ancestors_use() -> list[Swap]:
    """A gang is assigned to its own parent's host, for whose end it waits."""
    return [(hosts.HostView, "room_of_ancestors", lambda self, owner: hosts.Room())]


@rule(35, "tests/unit/test_family_circles.py::test_a_requeued_parent_gets_the_room_of_its_own_endless_child")
def children_keep_the_room_of_their_parents() -> list[Swap]:
    """A child runs on in the room for which its parent waits."""

    async def nothing(*given: Any) -> None:
        return

    return everywhere(make_room_for_parents, nothing)
