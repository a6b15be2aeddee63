"""Which agents owners get: compared with brute force over small clusters, and single cases."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fray_coordinator.protocol.placements.assignment import MAX_MOVES, Assignment, assign
from fray_coordinator.protocol.placements.hosts import ENDING, HostView, Room, host_view
from fray_coordinator.protocol.placements.owners import Owner, owner_of_job, owner_of_reservation
from fray_coordinator.protocol.scheduling import HostKind
from fray_layouts.records import (
    AgentRecord,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    ReservationRecord,
    ReservedPart,
    Resources,
    SliceMember,
)
from fray_layouts.spec import DeviceSpec, EntrypointSpec, GangSpec, JobSpec, ResourceSpec


def host(
    name: str, cores: int = 1, busy: int = 0, until: float | None = None, pool: str = "default", **fields: Any
) -> HostView:
    capacity = Resources(cpu=1000 * cores, memory=10**12, disk=10**12)
    view = HostView(agent=name, pool=pool, capacity=capacity, host=f"{name}.example", busy=Room(1000 * busy))
    return replace(view, until=until, **fields)


def worker(name: str, slice_: str, index: int, hosts: int, **fields: Any) -> HostView:
    member = SliceMember(id=slice_, type="v5litepod-16", index=index, hosts=hosts)
    capacity = Resources(cpu=8000, memory=10**12, disk=10**12, device="tpu-v5litepod-16", device_count=4)
    return replace(host(name), capacity=capacity, slice=member, **fields)


def gang(
    name: str,
    cores: Sequence[float] = (1,),
    at: float = 0.0,
    members: Sequence[str] = (),
    forming: bool = True,
    same: str = "",
    **placement: Any,
) -> Owner:
    """An owner whose bundles take these cores each; bundle n is on members[n], if there are any."""
    parts: list[ReservedPart] = []
    for size, equal in itertools.groupby(cores):
        parts.append(ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=size), count=len(list(equal)))))
    given: dict[str, list[int]] = {}
    for number, agent in enumerate(members):
        given.setdefault(agent, []).append(number)
    placed = Placement(members=[PlacementMember(agent=a, bundles=n) for a, n in given.items()], **placement)
    record = ReservationRecord(id=name, kind="reservation", parts=parts, low=len(cores), same=same, submitted_at=at)
    return replace(owner_of_reservation(record), placement=placed, forming=forming)


def job(name: str, replicas: int, at: float = 0.0, resources: ResourceSpec | None = None, **fields: Any) -> Owner:
    spec = JobSpec(
        name=name,
        entrypoint=EntrypointSpec(command=["true"]),
        replicas=replicas,
        resources=resources or ResourceSpec(),
        **fields,
    )
    return owner_of_job(JobRecord(id=name, spec=spec, status="gathering", submitted_at=at))


def slices(name: str, count: int, of: int, at: float = 0.0, alternatives: Sequence[str] = ()) -> Owner:
    device = DeviceSpec(kind="tpu", variant="v5litepod-16", count=4)
    wants = ResourceSpec(cpu=1, device=device, device_alternatives=list(alternatives))
    return job(name, count * of, at, wants, slices=count)


def agents_of(found: Assignment) -> list[str]:
    """The agent of each bundle."""
    by_bundle = {n: member.agent for member in found.members for n in member.bundles}
    return [by_bundle[n] for n in sorted(by_bundle)]


# --- against brute force


def fits(owner: Owner, hosts: Iterable[HostView], left: dict[str, int]) -> bool:
    """Whether the owner fits at all, found by trying every way."""
    views = {h.agent: h for h in hosts if h.willing}
    needs = [owner.part_of(n).shape.cpu for n in range(owner.low)]
    for pick in itertools.product(views, repeat=len(needs)):
        used = Counter[str]()
        for need, agent in zip(needs, pick, strict=True):
            used[agent] += need
        together = not owner.same or len({views[agent].zone for agent in pick}) == 1
        if together and all(left[agent] >= n for agent, n in used.items()):
            return True
    return False


def check(hosts: list[HostView], owners: list[Owner]) -> None:
    plan = assign(hosts, owners)
    views = {h.agent: h for h in hosts}
    left = {h.agent: h.capacity.cpu for h in hosts}
    for owner in sorted(owners, key=lambda owner: owner.order):
        given = agents_of(plan[owner.id])
        assert bool(given) == fits(owner, hosts, left), (owner, hosts, plan)
        for number, agent in enumerate(given):
            left[agent] -= owner.part_of(number).shape.cpu
            assert views[agent].willing
        assert not owner.same or len({views[agent].zone for agent in given}) <= 1
    assert min(left.values()) >= 0, (hosts, plan)
    assert assign(hosts[::-1], owners[::-1]) == plan, "it depends on the order of what it is given"
    after = [with_members(owner, plan[owner.id]) for owner in owners]
    again = assign(hosts, after)
    assert {name: found.members for name, found in again.items()} == {name: f.members for name, f in plan.items()}


def with_members(owner: Owner, found: Assignment) -> Owner:
    return replace(owner, placement=Placement(members=list(found.members), moves=MAX_MOVES))


@pytest.mark.parametrize("seed", [17, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (18, 19))])
def test_a_gang_that_fits_gets_all_members_and_no_host_is_overfilled(seed: int) -> None:
    kinds = [
        host("", cores, busy, 5.0 if busy else None, zone=zone, willing=willing)
        for cores in (1, 2)
        for busy in range(cores + 1)
        for zone in "xy"
        for willing in (True, False)
    ]
    sizes = [(1,), (1, 1), (1, 1, 1), (2, 1), (2, 2)]
    draw = random.Random(seed)
    for _ in range(500):
        hosts = [replace(draw.choice(kinds), agent=name) for name in "abc"]
        first, second = draw.choice(sizes), draw.choice(sizes)
        held = draw.choice([(), ("a", "b", "c")[: len(second)]])
        same = draw.choice(["", "zone"])
        check(hosts, [gang("g", first, 1.0, same=same), gang("h", second, 2.0, held if not same else ())])


def test_slices_are_given_whole_and_as_many_as_there_are() -> None:
    draw = random.Random(1)
    for _ in range(600):
        hosts: list[HostView] = []
        for number in range(draw.randint(1, 4)):
            size = draw.choice((2, 4))
            for index in range(size):
                willing, doubtful = draw.random() > 0.1, draw.random() < 0.05
                one = worker(f"s{number}h{index}", f"s{number}", index, size, willing=willing, doubtful=doubtful)
                hosts.append(replace(one, busy=Room(devices=4000 * draw.randint(0, 1)), until=5.0))
                if draw.random() < 0.1:
                    hosts.append(replace(one, agent=f"{one.agent}new", started_at=1.0))
        kinds = itertools.product((2, 4), (1, 2), (1.0, 2.0, 3.0))
        wanted = draw.choices(list(kinds), k=draw.randint(1, 4))
        owners = [slices(f"g{number}", count, size, at) for number, (size, count, at) in enumerate(wanted)]
        check_slices(hosts, owners)


def check_slices(hosts: list[HostView], owners: list[Owner]) -> None:
    plan = assign(hosts, owners)
    views, taken = {h.agent: h for h in hosts}, set[str]()
    for owner in sorted(owners, key=lambda owner: owner.order):
        part = owner.parts[0]
        size = part.count // part.slices
        whole = [s for s in whole_slices(hosts, size) if not taken & set(s)]
        given = agents_of(plan[owner.id])
        assert bool(given) == (len(whole) >= part.slices), (hosts, owners, plan)
        for first in range(0, len(given), size):
            assert tuple(given[first : first + size]) in whole
            assert [views[a].slice.index for a in given[first : first + size]] == list(range(size))  # type: ignore[union-attr]
        assert len(set(given)) == len(given)
        taken |= set(given)
    assert assign(hosts[::-1], owners[::-1]) == plan


def whole_slices(hosts: Iterable[HostView], size: int) -> list[tuple[str, ...]]:
    workers: dict[str, dict[int, HostView]] = {}
    for h in hosts:
        assert h.slice is not None
        if h.willing and not h.doubtful and h.slice.hosts == size:
            at = workers.setdefault(h.slice.id, {})
            if h.slice.index not in at or at[h.slice.index].started_at < h.started_at:
                at[h.slice.index] = h
    return [tuple(at[i].agent for i in range(size)) for at in workers.values() if len(at) == size]


# --- case by case


def test_several_bundles_of_a_gang_share_a_host() -> None:
    found = assign([host("a", 4), host("b", 4)], [job("g", 4)])["g"]
    assert agents_of(found) == ["a", "a", "a", "a"]


def test_bundles_of_a_gang_that_spreads_are_each_on_an_agent_of_their_own() -> None:
    assert agents_of(assign([host("a", 4), host("b", 4)], [job("g", 2, spread=True)])["g"]) == ["a", "b"]
    assert assign([host("a", 4), host("b", 4)], [job("g", 3, spread=True)])["g"].members == ()


def test_free_hosts_are_chosen_before_hosts_free_soon_before_hosts_with_unknown_ends() -> None:
    hosts = [host("unknown", busy=1), host("later", busy=1, until=9.0), host("soon", busy=1, until=5.0), host("z")]
    assert agents_of(assign(hosts, [gang("g", (1,))])["g"]) == ["z"]
    found = assign(hosts, [gang("g", (1, 1))])["g"]
    assert (agents_of(found), found.until) == (["z", "soon"], 5.0)
    assert assign(hosts, [gang("g", (1,) * 4)])["g"].until is None


def test_a_later_owner_gets_nothing_that_an_earlier_one_got() -> None:
    earlier, later = gang("e", (1, 1), 1.0), gang("l", (1, 1), 2.0, members=("a", "b"))
    found = assign([host("a"), host("b")], [later, earlier])
    assert agents_of(found["e"]) == ["a", "b"]
    assert found["l"] == Assignment()


def test_an_earlier_owner_takes_hosts_that_no_later_one_has_if_they_are_enough() -> None:
    hosts = [host(name) for name in "abcd"]
    found = assign(hosts, [gang("l", (1, 1), 2.0, members=("a", "b")), gang("e", (1, 1), 1.0)])
    assert agents_of(found["e"]) == ["c", "d"]
    assert agents_of(found["l"]) == ["a", "b"]


def test_running_jobs_keep_their_room_in_any_order() -> None:
    running = gang("r", (1, 1), 9.0, members=("a", "b"), forming=False)
    assert agents_of(assign([host(name) for name in "abc"], [running, gang("g", (1,), 1.0)])["g"]) == ["c"]


def test_members_stay_unless_others_are_free_now_and_no_more_than_a_few_times() -> None:
    busy = [host("a", busy=1, until=5.0), host("b")]
    stays = gang("g", (1, 1), members=("a", "b"))
    assert not assign(busy, [stays])["g"].moved
    found = assign([*busy, host("c")], [stays])["g"]
    assert (set(agents_of(found)), found.moved) == ({"b", "c"}, True)
    often = gang("g", (1, 1), members=("a", "b"), moves=MAX_MOVES)
    assert agents_of(assign([*busy, host("c")], [often])["g"]) == ["a", "b"]


@pytest.mark.parametrize("lost", [{"willing": False}, {"capacity": Resources()}])
def test_members_that_are_lost_are_exchanged_and_the_others_stay(lost: dict[str, Any]) -> None:
    hosts = [host("a"), replace(host("b"), **lost), host("c"), host("d")]
    found = assign(hosts, [gang("g", (1, 1), members=("d", "b"))])["g"]
    assert (set(agents_of(found)), found.moved) == ({"a", "d"}, False)


def test_an_agent_that_refuses_is_left_out() -> None:
    found = assign([host("a"), host("b")], [gang("g", (1,), members=("a",), refused=["a"])])["g"]
    assert agents_of(found) == ["b"]


def test_a_silent_member_keeps_its_place_and_is_given_no_other() -> None:
    silent = host("a", 2, doubtful=True)
    assert agents_of(assign([silent], [gang("g", (1,), members=("a",))])["g"]) == ["a"]
    assert assign([silent], [gang("g", (1,))])["g"].members == ()


def test_a_host_that_failed_to_start_the_job_comes_last() -> None:
    owner = replace(gang("g", (1,)), avoid_hosts=("a.example",))
    assert agents_of(assign([host("a"), host("b")], [owner])["g"]) == ["b"]
    assert agents_of(assign([host("a")], [owner])["g"]) == ["a"]


def test_hosts_with_devices_are_left_to_owners_that_want_devices() -> None:
    hosts = [worker("a", "s", 0, 1), host("b", 8)]
    assert agents_of(assign(hosts, [gang("g", (1,))])["g"]) == ["b"]


def test_a_slice_is_not_shared_and_one_that_lacks_a_worker_is_not_given() -> None:
    hosts = [worker(f"{name}{index}", name, index, 2) for name in "st" for index in (0, 1)]
    found = assign(hosts, [slices("one", 1, 2, 1.0), slices("two", 1, 2, 2.0), slices("three", 1, 2, 3.0)])
    assert agents_of(found["one"]) == ["s0", "s1"]
    assert agents_of(found["two"]) == ["t0", "t1"]
    assert found["three"].members == ()
    assert agents_of(assign(hosts[1:], [slices("one", 1, 2)])["one"]) == ["t0", "t1"]
    member = found["one"].members[1]
    assert member.slice is not None
    assert (member.slice.id, member.slice.index) == ("s", 1)


def test_a_slice_with_a_host_to_avoid_goes_after_other_free_slices_but_before_busy_ones() -> None:
    avoided, other, busy = ([worker(f"{s}{n}", s, n, 2) for n in range(2)] for s in "xyz")
    busy = [replace(one, busy=Room(devices=4000), until=5.0) for one in busy]
    owner = replace(slices("g", 1, 2), avoid_hosts=("x1.example",))
    assert agents_of(assign([*avoided, *other, *busy], [owner])["g"]) == ["y0", "y1"]
    assert agents_of(assign([*avoided, *busy], [owner])["g"]) == ["x0", "x1"]


def test_of_two_that_claim_to_be_one_worker_the_newer_counts() -> None:
    old = [worker("old0", "s", 0, 2), worker("old1", "s", 1, 2)]
    new = worker("new1", "s", 1, 2, started_at=5.0)
    first = assign(old, [slices("g", 1, 2)])["g"]
    again = replace(slices("g", 1, 2), placement=Placement(members=list(first.members)))
    assert agents_of(assign([*old, new], [again])["g"]) == ["old0", "new1"]


def test_alternatives_of_a_device_are_taken_in_their_order_and_not_mixed() -> None:
    other = Resources(cpu=8000, memory=10**12, disk=10**12, device="tpu-v6e-16", device_count=4)
    sixth = [replace(worker(f"b{index}", "b", index, 2), capacity=other) for index in (0, 1)]
    fifth = [worker(f"a{index}", "a", index, 2) for index in (0, 1)]
    wanted = slices("g", 1, 2, alternatives=["v6e-16"])
    assert agents_of(assign(sixth + fifth, [wanted])["g"]) == ["a0", "a1"]
    assert agents_of(assign(sixth + fifth[:1], [wanted])["g"]) == ["b0", "b1"]
    assert agents_of(assign(sixth + [replace(h, busy=Room(devices=1)) for h in fifth], [wanted])["g"]) == ["b0", "b1"]
    assert assign(sixth[:1] + fifth[:1], [wanted])["g"].members == ()


@pytest.mark.parametrize(
    ("wants", "chosen"),
    [
        ({"regions": ["east", "south"]}, ["b"]),
        ({"zone": "west-1"}, ["a"]),
        ({"labels": {"disk": "fast"}}, ["b"]),
        ({"preemptible": False}, ["a"]),
        ({"zone": "north-1"}, []),
    ],
)
def test_hosts_are_chosen_by_place_labels_and_kind(wants: dict[str, Any], chosen: list[str]) -> None:
    hosts = [
        host("a", 2, zone="west-1", region="west"),
        host("b", 2, zone="east-1", region="east", labels={"disk": "fast"}, kind=HostKind(preemptible=True)),
    ]
    owner = job("g", 2, resources=ResourceSpec(cpu=1, **wants))
    assert sorted(set(agents_of(assign(hosts, [owner])["g"]))) == chosen


def test_all_in_one_zone_or_region_and_never_where_none_is_told() -> None:
    hosts = [host("a", zone="x", region="r"), host("b", zone="y", region="r"), host("c", zone="y", region="s")]
    assert agents_of(assign(hosts, [gang("g", (1, 1), same="zone")])["g"]) == ["b", "c"]
    assert agents_of(assign(hosts, [gang("g", (1, 1), same="region")])["g"]) == ["a", "b"]
    assert assign([host("a"), host("b")], [gang("g", (1, 1), same="zone")])["g"].members == ()


@pytest.mark.parametrize("both", ["", "zone", "region"])
def test_the_gangs_of_a_group_are_each_where_they_ask_to_be(both: str) -> None:
    """The group has all the hosts that it needs, but a gang never gets bundles in several zones."""
    hosts = [
        host("a", zone="x", region="r"),
        host("b", zone="y", region="r"),
        host("c", zone="y", region="r"),
        host("d", zone="z", region="s"),
        host("e", zone="z", region="s"),
    ]
    bound = [
        ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=1), count=2, same="zone"), job=name) for name in "gh"
    ]
    record = ReservationRecord(id="o", kind="group", parts=bound, low=4, same=both)
    given = agents_of(assign(hosts, [owner_of_reservation(record)])["o"])
    assert given == ([] if both else ["b", "c", "d", "e"])
    alone = replace(owner_of_reservation(record), low=2)
    assert agents_of(assign(hosts, [alone])["o"]) == ["b", "c"]


def test_pools_are_apart() -> None:
    owner = replace(gang("g", (1,)), pool="~r")
    hosts = [host("a"), host("b", pool="~r")]
    assert agents_of(assign(hosts, [owner])["g"]) == ["b"]


def test_a_vote_that_a_heartbeat_lists_is_room_for_its_owner() -> None:
    owner = gang("g", (1, 1))
    record = AgentRecord(
        id="a",
        host="a.example",
        pool="default",
        supports_placements=True,
        capacity=Resources(cpu=2000),
        free=Resources(),
        holdings={"g": Holding(attempt=1, phase="reserved", bundles=[1]), "other": Holding(attempt=1, ends_by=7.0)},
    )
    view = host_view(record, {"g": owner})
    assert (view.busy, view.until, view.willing) == (Room(cpu=1000), 7.0, True)
    assert host_view(record, {}).until is None


def test_a_host_that_ends_an_attempt_counts_as_free_soon_and_at_once_for_the_same_owner() -> None:
    again = replace(gang("g", (1,)), attempt=2)
    record = AgentRecord(
        id="a",
        host="a.example",
        pool="default",
        supports_placements=True,
        capacity=Resources(cpu=1000),
        free=Resources(),
        holdings={"g": Holding(attempt=1, phase="running", bundles=[0])},
    )
    ending = host_view(record, {"g": again})
    assert (ending.busy, ending.until) == (Room(cpu=1000), ENDING)
    assert agents_of(assign([ending, host("b", busy=1)], [again])["g"]) == ["a"]
    assert agents_of(assign([ending, host("b")], [again])["g"]) == ["b"]
    goes_on = replace(again, stays=True)
    assert agents_of(assign([ending, host("0")], [goes_on])["g"]) == ["a"], "what is left there ends in any case"
    assert assign([ending, host("0")], [goes_on])["g"].until == 0.0
    held = replace(goes_on, placement=Placement(members=list(assign([ending, host("0")], [goes_on])["g"].members)))
    assert agents_of(assign([ending, host("0")], [held])["g"]) == ["a"]
    patience_is_over = assign([ending, host("0")], [replace(held, stays=False)])["g"]
    assert (agents_of(patience_is_over), patience_is_over.moved) == (["0"], True)
    assert agents_of(assign([ending, host("b")], [replace(goes_on, lost_by="a")])["g"]) == ["b"]
    assert agents_of(assign([ending, host("b")], [replace(goes_on, avoid_hosts=("a.example",))])["g"]) == ["b"]
    assert agents_of(assign([ending, host("b")], [replace(goes_on, id="h")])["h"]) == ["b"], "it was another's"
    running = host_view(record, {"g": replace(again, attempt=1)})
    assert (running.busy, running.until) == (Room(), None)


@pytest.mark.parametrize(
    "fields", [{"state": "dead"}, {"supports_placements": False}, {"drain": True}, {"driver": True}, {"unfit": True}]
)
def test_an_agent_that_may_not_be_chosen_is_unwilling(fields: dict[str, Any]) -> None:
    record = AgentRecord(id="a", host="a", pool="default", **({"supports_placements": True} | fields))
    assert not host_view(record, {}).willing


@pytest.mark.slow
def test_a_thousand_hosts_among_ten_thousand_are_found_quickly() -> None:
    draw = random.Random(3)
    busy = [(draw.randint(0, 4), draw.choice([None, 50.0])) for _ in range(10_000)]
    hosts = [host(f"a{n:05d}", 4, used, until, zone=f"z{n % 3}") for n, (used, until) in enumerate(busy)]
    large = job("large", 1000, 2.0, ResourceSpec(cpu=4), same="zone")
    begun = time.process_time()
    found = assign(hosts, [large, job("small", 16, 3.0)])
    took = time.process_time() - begun
    print(f"{took:.2f} s")
    assert sum(len(member.bundles) for member in found["large"].members) == 1000
    assert took < 10, "on an idle machine it is less than one"
