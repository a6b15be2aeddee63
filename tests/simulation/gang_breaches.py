"""How each invariant of gangs is broken by hand: what fires where no seed comes to it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import Status
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    FamilyFirst,
    Holding,
    JobLease,
    JobRecord,
    Placement,
    PlacementMember,
    ReservationRecord,
    Resources,
    SliceMember,
)
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import HoldingPhase
from tests.simulation import gang_invariants as gi, reservation_invariants as ri
from tests.simulation.effects import Run
from tests.simulation.gangs import FORMS, GangWorld
from tests.simulation.loop import Participant
from tests.simulation.watching import Change

HERE = Participant("here")
SPEC = {"name": "gang", "entrypoint": {"command": ["simulated"]}, "replicas": 2}
MEMBERS = [PlacementMember(agent="a", bundles=[0]), PlacementMember(agent="b", bundles=[1])]
WAITS = JobRecord(id="gang-1", spec=parse_spec(SPEC), status="gathering", placement=Placement(round=1, members=MEMBERS))
RUNS = replace(WAITS, status=str(Status.RUNNING))
RUN = Run("gang-1", 1, "a", "h1", 0.0, replicas=2)


def _world() -> GangWorld:
    """Agents "a" and "b" on the first two hosts."""
    world = GangWorld(0)
    for agent, host in zip("ab", world.hosts, strict=False):
        world._process_of[agent] = (HERE, host)
    return world


def _changed(before: Any, after: Any) -> Change:
    return Change((after or before).id, before, after, {}, {}, HERE)


def members_change_in_the_same_round() -> None:
    moved = replace(WAITS, placement=Placement(round=1, members=MEMBERS[:1]))
    gi.members_change_by_rounds(_world().gangs, _changed(WAITS, moved))


def it_moves_for_ever() -> None:
    moved = replace(WAITS, placement=Placement(round=2, members=MEMBERS, moves=4))
    gi.moves_are_few(_world().gangs, _changed(WAITS, moved))


def the_window_grows() -> None:
    gangs = _world().gangs
    for until in (10.0, 20.0):
        wider = replace(WAITS, placement=Placement(round=1, members=MEMBERS, until=until))
        gi.the_window_of_backfill_is_fixed(gangs, _changed(WAITS, wider))


def one_vote_is_missing() -> None:
    gi.a_gang_starts_with_every_vote(_world().gangs, _changed(WAITS, RUNS))


def it_starts_in_a_family_s_turn() -> None:
    turn = Placement(round=1, members=MEMBERS, first=[FamilyFirst(family="0f9c2a", at=1.0)])
    gi.nobody_starts_while_a_family_goes_first(_world().gangs, _changed(replace(WAITS, placement=turn), RUNS))


def a_slice_is_torn() -> None:
    world = _world()
    world.hosts[0].slice = SliceMember(id="s", type="v4-16", index=0, hosts=2)
    world.hosts[1].slice = SliceMember(id="t", type="v4-16", index=1, hosts=2)
    device = {"kind": "tpu", "variant": "v4-16", "count": 4}
    spec = parse_spec({**SPEC, "slices": 1, "resources": {"device": device}})
    gi.slices_are_given_whole(world.gangs, _changed(replace(WAITS, spec=spec), replace(RUNS, spec=spec)))


def an_old_agent_is_chosen() -> None:
    world = _world()
    world.gangs.older.add("b")
    gi.only_who_knows_the_rules_is_chosen(world.gangs, _changed(WAITS, WAITS))


def two_gangs_have_one_host() -> None:
    _world().gangs.check_room("a", Counter(cpu=10**9), "gang-1")


def a_replica_is_missing_in_a_success() -> None:
    succeeded = replace(RUNS, status=str(Status.SUCCEEDED))
    gi.one_result_and_it_is_that_of_all(_world().gangs, _changed(RUNS, succeeded))


def the_result_is_another_replicas() -> None:
    world = _world()
    for number, agent in enumerate("ab"):
        ran = dataclasses.replace(RUN, agent=agent, replica=number, how="success", end=1.0)
        world.effects.runs["gang-1", 1, number] = ran
    succeeded = replace(RUNS, status=str(Status.SUCCEEDED))
    gi.one_result_and_it_is_that_of_all(world.gangs, _changed(RUNS, succeeded))


def a_complete_gang_is_requeued() -> None:
    world = _world()
    world.gangs.complete["gang-1", 1] = 0.0
    back = replace(WAITS, attempt=2, placement=Placement(round=2))
    gi.a_complete_gang_is_never_thrown_away(world.gangs, _changed(RUNS, back))


def a_preemption_counts_as_a_failure() -> None:
    back = replace(WAITS, attempt=2, failures=1, placement=Placement(round=2))
    gi.a_gangs_failure_is_a_replicas_own(_world().gangs, _changed(RUNS, back))


def a_failure_counts_as_a_preemption() -> None:
    world = _world()
    world.effects.runs["gang-1", 1, 0] = dataclasses.replace(RUN, how="failure", end=1.0, told=True)
    world.effects.runs["gang-1", 1, 1] = dataclasses.replace(RUN, agent="b", replica=1)
    world.acts_for = lambda sender, agent_id: True  # type: ignore[method-assign]
    back = replace(WAITS, attempt=2, preemptions=1, placement=Placement(round=2))
    gi.a_gangs_failure_is_a_replicas_own(world.gangs, _changed(RUNS, back))


def a_gang_is_stopped_while_it_runs() -> None:
    world = _world()
    world.effects.begin(RUN)
    gi.a_stopped_gang_has_ended(world.gangs, _changed(RUNS, replace(RUNS, status=str(Status.STOPPED))))


def the_others_run_on() -> None:
    world = _world()
    world.watching.jobs["gang-1"] = replace(WAITS, attempt=2)
    world.watching.attempt_since["gang-1", 2] = 0.0
    world.hosts[0].running.append(SimpleNamespace(run=RUN))  # type: ignore[arg-type]
    world.stormy, world.loop.now = False, 1e6
    world.works = lambda agent_id: True  # type: ignore[method-assign]
    world._check_ended()


def _listing(phase: str) -> AgentRecord:
    held = Holding(attempt=1, phase=phase, round=1, bundles=[0])
    return AgentRecord(id="a", host="h1", pool="default", holdings={"gang-1": held})


def a_vote_is_taken_back() -> None:
    world = _world()
    world.watching.jobs["gang-1"] = WAITS
    gone = AgentRecord(id="a", host="h1", pool="default")
    gi.a_vote_binds(world.gangs, _changed(_listing(HoldingPhase.RESERVED), gone))


def an_end_is_never_told() -> None:
    world = _world()
    world.watching.jobs["gang-1"] = RUNS
    world.effects.runs["gang-1", 1, 0] = dataclasses.replace(RUN, how="success", end=1.0)
    gone = AgentRecord(id="a", host="h1", pool="default")
    gi.an_exit_comes_before_anything_else(world.gangs, _changed(_listing(HoldingPhase.RUNNING), gone))


def a_replica_starts_alone() -> None:
    gi.a_replica_starts_with_its_gang(_world().gangs, RUN)


def an_attempt_starts_beside_another() -> None:
    world = _world()
    gi.attempts_never_overlap(world.watching, dataclasses.replace(RUN, attempt=2), [RUN])


def nobody_checks_the_chips() -> None:
    world = _world()
    device = {"kind": "tpu", "variant": "v4-16", "count": 4}
    spec = parse_spec({**SPEC, "slices": 1, "resources": {"device": device}})
    world.watching.jobs["gang-1"] = replace(RUNS, spec=spec)
    gi.a_job_finds_its_chips_free(world.gangs, RUN)


def a_later_single_takes_the_room() -> None:
    world = _world()
    waiting = SimpleNamespace(owner=SimpleNamespace(order=(0, 0.0, ""), placement=Placement()))
    leases = SimpleNamespace(unreserved=lambda *given: Resources(), waiting_placements=lambda room: [waiting])
    world.agents["a"] = SimpleNamespace(member=SimpleNamespace(leases=leases))  # type: ignore[assignment]
    entry = PendingKey("default", 0, 1.0, "quick-1", 1, Shape(1000, 0, 0, "", 0, False))
    world.gangs.claims(leases, entry, None)  # type: ignore[arg-type]
    world.gangs.claimed(replace(RUNS, id="quick-1", lease=JobLease(agent="a", host="h1", since=0.0)))


def the_first_waits_for_ever() -> None:
    world = _world()
    world.watching.jobs["gang-1"] = replace(WAITS, exit=AttemptExit(kind="lost"))
    for world.loop.now in (1.0, FORMS + 2.0):
        world._check_first()


HELD = ReservationRecord(id="group-1", kind="group", state="held", low=2, placement=Placement(round=1, members=MEMBERS))


def what_was_held_forms_again() -> None:
    ri.what_is_held_stays_held(_world().gangs, _changed(HELD, replace(HELD, state="forming")))


def a_reservation_is_held_without_votes() -> None:
    ri.a_reservation_is_held_with_every_vote(_world().gangs, _changed(replace(HELD, state="forming"), HELD))


def a_job_of_a_group_starts_alone() -> None:
    inside = replace(RUNS, spec=replace(RUNS.spec, pool="~group-1"))
    ri.a_group_starts_as_one(_world().gangs, _changed(None, inside))


def two_jobs_are_in_one_bundle() -> None:
    world = _world()
    world.watching.jobs["gang-1"] = replace(RUNS, spec=replace(RUNS.spec, pool="~group-1"))
    world.gangs.reservations["group-1"] = HELD
    leases = SimpleNamespace(placements={"group-1": SimpleNamespace(bundles=())})
    world.agents["a"] = SimpleNamespace(member=SimpleNamespace(leases=leases))  # type: ignore[assignment]
    world.hosts[0].running.append(SimpleNamespace(run=RUN))  # type: ignore[arg-type]
    ri.a_bundle_has_one_job(world.gangs, RUN)


def what_was_renewed_ends() -> None:
    world = _world()
    renewed = replace(HELD, expires_at=world.storage.clock.wall() + 60.0)
    over = replace(renewed, state="ended", reason="it was not renewed in time")
    ri.what_is_renewed_goes_on(world.gangs, _changed(renewed, over))


BREACHES: dict[str, Callable[[], None]] = {
    "members change by rounds": members_change_in_the_same_round,
    "moves for a better set are few": it_moves_for_ever,
    "the window of backfill is fixed": the_window_grows,
    "a gang starts with every vote": one_vote_is_missing,
    "nobody starts while a family goes first": it_starts_in_a_family_s_turn,
    "slices are given whole": a_slice_is_torn,
    "only who knows the rules is chosen": an_old_agent_is_chosen,
    "no agent has more than its host": two_gangs_have_one_host,
    "a gang succeeds when all replicas have": a_replica_is_missing_in_a_success,
    "one result, and it is replica 0's": the_result_is_another_replicas,
    "a complete gang is never thrown away": a_complete_gang_is_requeued,
    "a gang's failure is a replica's own": a_preemption_counts_as_a_failure,
    "a replica's failure is the gang's": a_failure_counts_as_a_preemption,
    "a stopped gang has ended": a_gang_is_stopped_while_it_runs,
    "who hears that the others end, ends": the_others_run_on,
    "a vote binds": a_vote_is_taken_back,
    "an exit comes before anything else": an_end_is_never_told,
    "a replica starts with its gang": a_replica_starts_alone,
    "attempts of a gang never overlap": an_attempt_starts_beside_another,
    "a job finds its chips free": nobody_checks_the_chips,
    "room that becomes free goes to a waiting owner": a_later_single_takes_the_room,
    "what is held stays held until it ends": what_was_held_forms_again,
    "a reservation that is renewed goes on": what_was_renewed_ends,
    "a reservation is held with every vote": a_reservation_is_held_without_votes,
    "a group starts as one": a_job_of_a_group_starts_alone,
    "a bundle has one job": two_jobs_are_in_one_bundle,
    "a gang that is first and fits is formed": the_first_waits_for_ever,
}
