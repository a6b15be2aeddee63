"""How a member acts on the record of an owner that it has read."""

from __future__ import annotations

import pytest

from fray_coordinator.protocol.placements.owners import Owner, owner_of_job
from fray_coordinator.protocol.placements.votes import (
    MemberAction,
    OwnerPhase,
    Vote,
    Voter,
    member_action,
    phase_of_owner,
    withdrawn,
)
from fray_layouts.records import JobRecord, Placement, PlacementMember, ReservationRecord
from fray_layouts.spec import DeviceSpec, EntrypointSpec, JobSpec, ResourceSpec
from fray_layouts.states import HoldingPhase

ME = Voter("me")
RESERVED, REFUSED, RUNNING, ENDING = (
    HoldingPhase.RESERVED,
    HoldingPhase.REFUSED,
    HoldingPhase.RUNNING,
    HoldingPhase.ENDING,
)


def owner(*, attempt: int = 1, round: int = 3, mine: list[int] | None = None) -> Owner:
    """A gang of three with these replicas on "me" and the others on "you"."""
    own = [0, 2] if mine is None else mine
    members = [PlacementMember(agent="me", bundles=own)] if own else []
    members.append(PlacementMember(agent="you", bundles=[n for n in range(3) if n not in own]))
    spec = JobSpec(name="g", entrypoint=EntrypointSpec(command=["true"]), replicas=3)
    placement = Placement(round=round, members=members)
    return owner_of_job(JobRecord(id="g", spec=spec, status="gathering", attempt=attempt, placement=placement))


def vote(phase: str = "", attempt: int = 1, round: int = 3, bundles: tuple[int, ...] = (0, 2)) -> Vote:
    return Vote(attempt, round, bundles, phase)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (None, MemberAction.TAKE),
        (vote(), MemberAction.RESERVE),
        (vote(RESERVED), MemberAction.NOTHING),
        (vote(REFUSED), MemberAction.NOTHING),
        (vote(RESERVED, round=2), MemberAction.TAKE),
        (vote(RESERVED, bundles=(0,)), MemberAction.TAKE),
        (vote(REFUSED, round=2), MemberAction.TAKE),
        (vote(RUNNING, attempt=0), MemberAction.ABANDON),
        (vote(ENDING, attempt=0), MemberAction.ABANDON),
    ],
)
def test_a_member_votes_for_the_round_that_it_has_read(held: Vote | None, expected: MemberAction) -> None:
    assert member_action(ME, owner(), OwnerPhase.FORMING, held) is expected


@pytest.mark.parametrize("held", [vote(), vote(RESERVED), vote(REFUSED)])
@pytest.mark.parametrize("owner_phase", [OwnerPhase.FORMING, OwnerPhase.STARTED, OwnerPhase.OVER])
def test_a_former_member_frees_the_room_that_it_kept(held: Vote, owner_phase: OwnerPhase) -> None:
    assert member_action(ME, owner(mine=[]), owner_phase, held) is MemberAction.RELEASE
    assert member_action(ME, owner(mine=[]), owner_phase, None) is MemberAction.NOTHING


def test_only_a_vote_of_this_round_and_attempt_starts() -> None:
    assert member_action(ME, owner(), OwnerPhase.STARTED, vote(RESERVED)) is MemberAction.START
    for held in (vote(), vote(REFUSED), vote(RESERVED, round=2), vote(RESERVED, attempt=0)):
        assert member_action(ME, owner(), OwnerPhase.STARTED, held) is MemberAction.RELEASE
    assert member_action(ME, owner(), OwnerPhase.STARTED, None) is MemberAction.NOTHING


def test_a_running_member_ends_when_the_record_moved_on_or_asks_it_to() -> None:
    assert member_action(ME, owner(), OwnerPhase.STARTED, vote(RUNNING)) is MemberAction.NOTHING
    assert member_action(ME, owner(), OwnerPhase.STARTED, vote(RUNNING), stopped=True) is MemberAction.STOP
    assert member_action(ME, owner(attempt=2), OwnerPhase.STARTED, vote(RUNNING)) is MemberAction.ABANDON
    assert member_action(ME, owner(mine=[]), OwnerPhase.STARTED, vote(RUNNING)) is MemberAction.ABANDON
    assert member_action(ME, owner(), OwnerPhase.OVER, vote(RUNNING)) is MemberAction.ABANDON


def test_a_leaving_member_takes_its_vote_back_first() -> None:
    leaver = Voter("me", leaving=True)
    assert member_action(leaver, owner(), OwnerPhase.FORMING, vote(RESERVED)) is MemberAction.WITHDRAW
    assert member_action(leaver, owner(), OwnerPhase.FORMING, vote(RESERVED, round=2)) is MemberAction.RELEASE
    assert member_action(leaver, owner(), OwnerPhase.FORMING, vote()) is MemberAction.RELEASE
    assert member_action(leaver, owner(), OwnerPhase.FORMING, None) is MemberAction.NOTHING
    assert member_action(leaver, owner(), OwnerPhase.STARTED, vote(RESERVED)) is MemberAction.START


def test_an_unfit_agent_refuses_and_takes_its_vote_back() -> None:
    unfit = Voter("me", unfit=True)
    assert member_action(unfit, owner(), OwnerPhase.FORMING, vote(RESERVED)) is MemberAction.WITHDRAW
    assert member_action(unfit, owner(), OwnerPhase.FORMING, vote(RESERVED, round=2)) is MemberAction.REFUSE
    assert member_action(unfit, owner(), OwnerPhase.FORMING, vote()) is MemberAction.REFUSE
    assert member_action(unfit, owner(), OwnerPhase.FORMING, None) is MemberAction.REFUSE
    assert member_action(unfit, owner(), OwnerPhase.FORMING, vote(REFUSED)) is MemberAction.NOTHING


@pytest.mark.parametrize("held", [None, vote(), vote(RESERVED), vote(RUNNING)])
def test_a_state_of_another_version_changes_nothing(held: Vote | None) -> None:
    assert member_action(ME, owner(round=9), OwnerPhase.UNKNOWN, held) is MemberAction.NOTHING


def test_a_round_that_was_taken_back_has_no_members_and_counts() -> None:
    before = Placement(round=4, members=[PlacementMember(agent="me")], moves=2, until=5.0, refused=["x"])
    assert withdrawn(before) == Placement(round=5, moves=2, until=5.0, refused=["x"])


@pytest.mark.parametrize(
    ("state", "owner_phase"),
    [
        ("unadmitted", OwnerPhase.OVER),
        ("pending", OwnerPhase.OVER),
        ("gathering", OwnerPhase.FORMING),
        ("running", OwnerPhase.STARTED),
        ("succeeded", OwnerPhase.OVER),
        ("stopped", OwnerPhase.OVER),
        ("paused", OwnerPhase.UNKNOWN),
    ],
)
def test_a_jobs_status_gives_the_phase_of_its_gang(state: str, owner_phase: OwnerPhase) -> None:
    spec = JobSpec(name="g", entrypoint=EntrypointSpec(command=["true"]), replicas=2)
    assert phase_of_owner(JobRecord(id="g", spec=spec, status=state)) is owner_phase


@pytest.mark.parametrize(
    ("state", "owner_phase"),
    [
        ("forming", OwnerPhase.FORMING),
        ("held", OwnerPhase.STARTED),
        ("ended", OwnerPhase.OVER),
        ("paused", OwnerPhase.UNKNOWN),
    ],
)
def test_a_reservations_state_gives_its_phase(state: str, owner_phase: OwnerPhase) -> None:
    assert phase_of_owner(ReservationRecord(id="r", kind="reservation", state=state)) is owner_phase


def test_a_missing_record_is_over() -> None:
    assert phase_of_owner(None) is OwnerPhase.OVER


def test_a_bundle_has_the_device_of_the_host() -> None:
    device = DeviceSpec(kind="tpu", variant="v5litepod-4", count=4)
    spec = JobSpec(
        name="g",
        entrypoint=EntrypointSpec(command=["true"]),
        replicas=2,
        resources=ResourceSpec(device=device, device_alternatives=["v6e-4"]),
    )
    (part,) = owner_of_job(JobRecord(id="g", spec=spec, status="gathering")).parts
    assert [shape.device for shape in part.variants()] == ["tpu-v5litepod-4", "tpu-v6e-4"]
    assert part.shape_on("tpu-v6e-4").device == "tpu-v6e-4"
    assert part.shape_on("tpu-v4-8").device == part.shape_on("").device == "tpu-v5litepod-4"
