"""The demand of waiting work for a pool: how many machines, where, and in which requests."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from fray_coordinator.protocol.placements.hosts import HostView, lacks
from fray_coordinator.protocol.placements.launching import bundles_of_job
from fray_coordinator.protocol.placements.owners import Owner, Part, owner_of_job, owner_of_reservation
from fray_coordinator.protocol.scaling.demand import Order, capacity_of, demand
from fray_coordinator.protocol.scaling.planning import plan, wanted
from fray_coordinator.protocol.scaling.view import refusal
from fray_layouts.index_keys import Shape
from fray_layouts.records import JobRecord, ReservationRecord, Resources
from fray_layouts.spec import DeviceSpec, ResourceSpec
from tests.support.scaling_views import CAPACITY, NOW, SPEC, TPU, agent, gang, job, machine, orders, view, with_agents


def test_jobs_are_packed_into_new_machines() -> None:
    assert orders(view(jobs=[job(n) for n in range(5)])) == [(3, "us-a", False)]
    assert orders(view()) == []


def test_free_and_coming_capacity_is_subtracted() -> None:
    jobs = [job(n) for n in range(4)]
    coming = machine("m1", "creating", asked_at=NOW)
    assert orders(view(SPEC, coming, jobs=jobs)) == [(1, "us-a", False)]
    people = with_agents(view(jobs=jobs), agent("a", ""))
    assert orders(people) == [(1, "us-a", False)]
    silent = replace(people, silent={"a"})
    assert orders(silent) == [(2, "us-a", False)]
    drained = with_agents(view(jobs=jobs), agent("a", "", drain=True))
    assert orders(drained) == [(2, "us-a", False)]


def test_a_job_that_fits_no_machine_makes_none() -> None:
    for wants in (
        ResourceSpec(cpu=5),
        ResourceSpec(memory=9 * 10**9),
        ResourceSpec(device=DeviceSpec(kind="gpu")),
        ResourceSpec(zone="mars"),
        ResourceSpec(labels={"team": "x"}),
    ):
        assert orders(view(jobs=[job(1, wants)])) == []
    assert orders(view(changed(SPEC, spot=True), jobs=[job(1, ResourceSpec(preemptible=False))])) == []


def test_jobs_say_in_which_zone_a_machine_must_be() -> None:
    assert orders(view(jobs=[job(1, ResourceSpec(zone="eu-b"))])) == [(1, "eu-b", False)]
    assert orders(view(jobs=[job(1, ResourceSpec(regions=["eu"]))])) == [(1, "eu-b", False)]
    labelled = changed(SPEC, labels={"team": "x"})
    assert orders(view(labelled, jobs=[job(1, ResourceSpec(labels={"team": "x"}))])) == [(1, "us-a", False)]


def test_work_for_one_zone_says_that_it_is_avoided() -> None:
    """This also holds if another zone is the pool's first."""
    there = ResourceSpec(cpu=2, zone="eu-b")
    avoided = {zone: refusal(None, "stockout", "none left", NOW) for zone in SPEC.zones}
    seen = replace(view(), zones=avoided)
    waiting = gang(2)
    waits = owner_of_job(changed(waiting, spec=changed(waiting.spec, resources=there)))
    for wanting in (replace(seen, jobs=[job(1, there)]), replace(seen, owners=[waits])):
        assert plan(wanting, NOW).scaling.limit == "zones"


def test_a_gang_of_slices_is_one_request() -> None:
    seen = replace(view(TPU), owners=[owner_of_job(gang(8, 2))])
    assert orders(seen) == [(2, "us-a", True)]
    found = plan(seen, NOW).orders[0]
    made = wanted(seen, found, ["m1", "m2"], NOW)
    assert [(m.batch, m.batch_size, m.hosts) for m in made] == [("m1", 2, 4), ("m1", 2, 4)]
    coming = replace(seen, machines={m.name: m for m in made})
    assert orders(coming) == []
    assert demand(coming, NOW).used == {"m1", "m2"}
    assert orders(replace(seen, spec=changed(TPU, max=1))) == []


def test_replicas_are_spread_and_stay_in_one_zone() -> None:
    seen = replace(view(), owners=[owner_of_job(gang(3, spread=True))])
    assert orders(seen) == [(3, "us-a", False)]
    assert orders(replace(seen, owners=[owner_of_job(gang(4))])) == [(2, "us-a", False)]
    same = replace(view(), owners=[owner_of_job(gang(4, same="zone"))])
    elsewhere = with_agents(
        same,
        agent(
            "a",
            "",
        ),
    )
    assert orders(elsewhere) == [(1, "us-a", False)]


def test_a_machine_of_unknown_size_is_tried_first() -> None:
    seen = replace(view(jobs=[job(n) for n in range(9)]), capacity=None)
    assert orders(seen) == [(1, "us-a", False)]
    assert orders(replace(seen, machines={"m1": machine("m1", "creating")})) == []
    assert capacity_of(SPEC, [agent("a", "m1")]) == CAPACITY


def test_capacity_that_a_pool_does_not_state_is_taken_from_its_hosts() -> None:
    said = changed(TPU, capacity=Resources(cpu=8000))
    found = capacity_of(said, [])
    assert found is not None
    assert (found.cpu, found.device, found.device_count) == (8000, "tpu-v5litepod-16", 4)
    assert found.memory > 0
    seen = replace(view(said), owners=[owner_of_job(gang(8, 2))])
    assert orders(seen) == [(2, "us-a", True)], "its chips are there"
    known = agent("a", "m1", capacity=Resources(cpu=1000, memory=7, disk=9, device="gpu-h100", device_count=8))
    few = changed(SPEC, capacity=Resources(cpu=500))
    assert capacity_of(few, [known]) == Resources(cpu=500, memory=7, disk=9, device="gpu-h100", device_count=8)
    assert capacity_of(few, []) is None, "nobody knows its memory"
    own = changed(few, capacity=Resources(cpu=500, memory=1, device="gpu-a100", device_count=1))
    assert capacity_of(own, [known]) == Resources(cpu=500, memory=1, disk=9, device="gpu-a100", device_count=1)


def test_a_gang_in_one_zone_is_completed_where_its_hosts_are() -> None:
    free = [changed(agent(f"a{n}", ""), zone="eu-b", region="eu") for n in range(3)]
    seen = with_agents(replace(view(), owners=[owner_of_job(gang(8, same="zone"))]), *free)
    assert orders(seen) == [(1, "eu-b", False)]
    assert orders(with_agents(seen)) == [(4, "us-a", False)]
    shut = {"us-a": refusal(None, "stockout", "", NOW), "eu-b": refusal(None, "stockout", "", NOW)}
    assert plan(replace(seen, zones=shut), NOW).scaling.limit == "zones"


def group(*jobs: JobRecord) -> Owner:
    """A launch group of these gangs."""
    parts = [bundles_of_job(job.spec, job.id) for job in jobs]
    return owner_of_reservation(
        ReservationRecord(id="r-1", kind="group", pool="p", parts=parts, low=sum(job.spec.replicas for job in jobs))
    )


def test_a_gang_of_a_group_stays_in_one_zone() -> None:
    """Free hosts in two zones are no room for it, though the group may use both."""
    there = [agent("a", ""), changed(agent("b", ""), zone="eu-b", region="eu")]
    waiting = replace(view(), owners=[group(gang(2, same="zone", cpu=4.0))])
    assert orders(with_agents(waiting, *there)) == [(1, "us-a", False)]
    anywhere = replace(view(), owners=[group(gang(2, cpu=4.0))])
    assert orders(with_agents(anywhere, *there)) == []
    shut = replace(with_agents(waiting, *there), zones={"us-a": refusal(None, "stockout", "", NOW)})
    assert orders(shut) == [(1, "eu-b", False)]


def test_owners_that_wait_in_one_zone_say_nothing_of_another() -> None:
    """Owners with equal demands are compared with a pool's machines once, but not if they need other places."""
    shut = replace(view(), zones={"eu-b": refusal(None, "stockout", "", NOW)})
    one = replace(owner_of_job(gang(2, same="zone", cpu=4.0)), within="eu-b")
    other = replace(one, id="g-2", submitted_at=2.0, within="us-a")
    assert orders(replace(shut, owners=[one, other])) == [(2, "us-a", False)]


def test_the_largest_bundles_of_a_group_are_packed_first() -> None:
    """The group is given its hosts in the same order."""

    def with_memory(replicas: int, gigabytes: int) -> JobRecord:
        job = gang(replicas, cpu=1.0)
        return changed(job, spec=changed(job.spec, resources=ResourceSpec(cpu=1, memory=gigabytes * 10**9)))

    there = [agent(name, "", free=changed(CAPACITY, memory=free * 10**9)) for name, free in (("a", 3), ("b", 2))]
    waiting = replace(view(), owners=[group(with_memory(1, 1), with_memory(1, 3))])
    assert orders(with_agents(waiting, *there)) == []


def test_an_unfit_machine_is_waited_for_before_another_is_wanted() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    sick = with_agents(view(SPEC, up, jobs=[job(1)]), agent("a", "m1", unfit=True))
    assert (set(demand(sick, NOW).used), demand(sick, NOW).orders) == ({"m1"}, ())
    given_up = with_agents(view(SPEC, changed(up, state="draining"), jobs=[job(1)]), agent("a", "m1", unfit=True))
    assert [order.count for order in demand(given_up, NOW).orders] == [1]
    of_people = with_agents(view(SPEC, jobs=[job(1)]), agent("a", "", unfit=True))
    assert [order.count for order in demand(of_people, NOW).orders] == [1]


def test_an_order_says_why() -> None:
    assert plan(view(jobs=[job(1)]), NOW).orders == (Order(1, "us-a", reason="a waiting job has no room"),)


def test_a_gang_that_finds_the_pool_full_says_so() -> None:
    owners = [owner_of_job(changed(gang(4, spread=True), id=f"g-{number}")) for number in (1, 2)]
    found = plan(replace(view(), owners=owners), NOW)
    assert ([order.count for order in found.orders], found.scaling.limit) == ([4], "")
    other = owner_of_job(changed(gang(2, cpu=4.0), id="g-3"))
    cut = plan(replace(view(), owners=[owners[0], other]), NOW)
    assert ([order.count for order in cut.orders], cut.scaling.limit) == ([4], "max")


def test_a_large_cluster_is_planned_with_few_looks_at_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of one zone are compared with a kind of work once, however many they are."""
    looked: list[str] = []

    def counted(host: HostView, part: Part, shape: Shape) -> list[str]:
        looked.append(host.agent)
        return lacks(host, part, shape)

    monkeypatch.setattr("fray_coordinator.protocol.scaling.demand.lacks", counted)
    coming = [machine(f"m{number}", "creating", asked_at=NOW) for number in range(200)]
    seen = view(changed(SPEC, max=1000), *coming, jobs=[job(number) for number in range(900)])
    assert orders(seen) == [(250, "us-a", False)]
    assert len(looked) <= 2
