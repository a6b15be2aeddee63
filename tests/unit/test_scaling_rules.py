"""Rules of scaling: what is wanted, what goes, what became of each machine."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from fray_coordinator.protocol.placements.hosts import HostView, lacks
from fray_coordinator.protocol.placements.owners import Part, owner_of_job
from fray_coordinator.protocol.scaling.costs import cost_so_far
from fray_coordinator.protocol.scaling.demand import Order, demand
from fray_coordinator.protocol.scaling.listed import ListedMachine, ListedState
from fray_coordinator.protocol.scaling.machines import (
    BOOT_SECONDS,
    CALL_SECONDS,
    MISSING_SECONDS,
    UNFIT_SECONDS,
    asked,
    created,
    observe,
    refused,
    to_ask,
    to_delete,
    to_drain,
)
from fray_coordinator.protocol.scaling.planning import WAIT_SECONDS, confirmed, plan, wanted, withdrawn
from fray_coordinator.protocol.scaling.provisioning import everywhere, gone_by, in_force
from fray_coordinator.protocol.scaling.sizes import capacity_of, hosts_of
from fray_coordinator.protocol.scaling.view import PoolView, WaitingJob
from fray_coordinator.protocol.scaling.zones import open_zones, place_of, refusal, remembered
from fray_coordinator.protocol.scheduling import shape_of_resources
from fray_layouts.index_keys import Shape
from fray_layouts.records import (
    AgentRecord,
    Holding,
    JobRecord,
    MachineRecord,
    PoolScaling,
    ProvisioningSpec,
    Resources,
)
from fray_layouts.spec import DeviceSpec, EntrypointSpec, JobSpec, ResourceSpec

NOW = 10_000.0
CAPACITY = Resources(cpu=4000, memory=8 * 10**9, disk=10**11)
SPEC = ProvisioningSpec(provider="command", zones=["us-a", "eu-b"], max=4, idle_seconds=60.0)
TPU = ProvisioningSpec(provider="tpu", machine_type="v5litepod-16", zones=["us-a"], max=4)


def view(spec: ProvisioningSpec = SPEC, *machines: MachineRecord, jobs: list[WaitingJob] | None = None) -> PoolView:
    return PoolView(
        "p",
        spec,
        machines={m.name: m for m in machines},
        jobs=jobs or [],
        hosts=hosts_of(spec),
        capacity=capacity_of(spec, []) or CAPACITY,
        looked_at=NOW - 5,
    )


def job(number: int, wants: ResourceSpec | None = None) -> WaitingJob:
    wants = wants or ResourceSpec(cpu=2)
    return WaitingJob(f"j{number}", 0, float(number), shape_of_resources(wants, False, False, False), wants)


def machine(name: str, state: str, **fields: object) -> MachineRecord:
    made = MachineRecord(pool="p", name=name, state=state, provider="command", zone="us-a", batch=name, wanted_at=1.0)
    return changed(made, **fields)


def agent(name: str, on: str, **fields: object) -> AgentRecord:
    made = AgentRecord(id=name, host=name, pool="p", machine=on, capacity=CAPACITY, free=CAPACITY, places=True)
    return changed(made, zone="us-a", region="us", **fields)


def with_agents(seen: PoolView, *agents: AgentRecord) -> PoolView:
    return replace(seen, agents={a.id: a for a in agents})


def listed(name: str, state: ListedState = ListedState.READY, **fields: str) -> ListedMachine:
    return ListedMachine("p", name, fields.pop("zone", "us-a"), state, **fields)


def orders(seen: PoolView) -> list[tuple[int, str | None, bool]]:
    return [(order.count, order.zone, order.together) for order in plan(seen, NOW).orders]


def gang(replicas: int, slices: int = 0, cpu: float = 2.0, **wants: object) -> JobRecord:
    device = DeviceSpec(kind="tpu", variant="v5litepod-16", count=4) if slices else None
    spec = JobSpec(
        name="g",
        entrypoint=EntrypointSpec(command=["x"]),
        replicas=replicas,
        slices=slices,
        spread=bool(wants.pop("spread", False)),
        same=str(wants.pop("same", "")),
        resources=ResourceSpec(cpu=cpu, device=device),
        pool="p",
    )
    return JobRecord(id="g-1", spec=spec, status="gathering", submitted_at=1.0)


def test_jobs_are_packed_into_new_machines() -> None:
    assert orders(view(jobs=[job(n) for n in range(5)])) == [(3, "us-a", False)]
    assert orders(view()) == []


def test_the_pool_never_orders_more_than_its_bounds_allow() -> None:
    jobs = [job(n) for n in range(40)]
    found = plan(view(jobs=jobs), NOW)
    assert (found.orders[0].count, found.scaling.limit, found.scaling.wanted) == (4, "max", 20)
    there = machine("m1", "deleting")
    assert plan(view(SPEC, there, jobs=jobs), NOW).orders[0].count == 3
    paid = replace(view(changed(SPEC, max_hourly_cost=5.0), jobs=jobs), prices={"us-a": 2.0})
    found = plan(paid, NOW)
    assert (found.orders[0].count, found.scaling.limit) == (2, "cost")
    assert plan(replace(paid, prices={}), NOW).orders == ()


def test_what_is_free_or_coming_is_subtracted() -> None:
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


def test_a_refused_zone_is_avoided_and_the_next_one_is_asked() -> None:
    seen = replace(view(jobs=[job(1)]), zones={"us-a": refusal(None, "stockout", "none left", NOW)})
    assert orders(seen) == [(1, "eu-b", False)]
    both = {zone: refusal(None, "stockout", "none left", NOW) for zone in SPEC.zones}
    found = plan(replace(seen, zones=both), NOW)
    assert (found.orders, found.scaling.limit) == ((), "zones")
    assert plan(replace(seen, zones=both), NOW + 61).orders[0].zone == "us-a"


def test_work_for_one_zone_says_that_it_is_avoided() -> None:
    """Also where another zone is the pool's first."""
    there = ResourceSpec(cpu=2, zone="eu-b")
    avoided = {zone: refusal(None, "stockout", "none left", NOW) for zone in SPEC.zones}
    seen = replace(view(), zones=avoided)
    waiting = gang(2)
    waits = owner_of_job(changed(waiting, spec=changed(waiting.spec, resources=there)))
    for wanting in (replace(seen, jobs=[job(1, there)]), replace(seen, owners=[waits])):
        assert plan(wanting, NOW).scaling.limit == "zones"


def test_pauses_of_a_zone_grow_and_are_forgotten() -> None:
    first = refusal(None, "stockout", "", NOW)
    second = refusal(first, "stockout", "", NOW)
    assert second.until - NOW == 2 * (first.until - NOW)
    assert refusal(second, "quota", "", NOW).times == 1
    assert remembered({"us-a": first}, ["us-a"], NOW) == {}
    assert remembered({"us-a": first}, [], first.until + 3601) == {}
    assert open_zones(ProvisioningSpec(provider="local"), {}, NOW) == [""]


def test_places_of_zones() -> None:
    assert place_of("tpu", "us-east5-a") == ("us-east5-a", "us-east5")
    assert place_of("cloud_run", "us-east5") == ("", "us-east5")
    assert place_of("local", "host") == ("", "")


def test_a_pool_has_its_minimum() -> None:
    low = changed(SPEC, min=2)
    assert orders(view(low)) == [(2, "us-a", False)]
    assert orders(view(low, machine("m1", "up"))) == [(1, "us-a", False)]
    assert orders(view(low, machine("m1", "draining"))) == [(2, "us-a", False)]


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


def test_a_gang_whose_batch_exceeds_the_bounds_gets_no_part_of_it() -> None:
    there = machine("m1", "draining")
    seen = replace(view(changed(TPU, max=2), there), owners=[owner_of_job(gang(8, 2))])
    assert (plan(seen, NOW).orders, plan(seen, NOW).scaling.limit) == ((), "max")


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


def test_what_a_pool_does_not_say_of_its_hosts_is_as_they_have_it() -> None:
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


def test_two_scalers_at_once_do_not_exceed_max() -> None:
    """Whoever lists last counts the other's intents, and takes its own back."""
    spec = changed(SPEC, max=1)
    mine, other = machine("m2", "wanted"), machine("m1", "wanted")
    assert set(confirmed(view(spec, mine, other), NOW)) == {"m2"}
    assert set(confirmed(view(spec, mine, machine("m3", "creating")), NOW)) == {"m2"}
    assert confirmed(view(spec, mine), NOW) == {}
    paid = changed(SPEC, max_hourly_cost=3.0)
    dear = [changed(m, hourly_cost=2.0) for m in (mine, other)]
    assert set(confirmed(view(paid, *dear), NOW)) == {"m2"}


def test_an_intent_is_asked_for_until_it_is_listed() -> None:
    intent = machine("m1", "wanted")
    assert to_ask(view(SPEC, intent), NOW) == [(intent,)]
    waits = asked(intent, NOW)
    assert to_ask(view(SPEC, waits), NOW + 1) == []
    assert to_ask(view(SPEC, waits), NOW + 31) == [(waits,)]
    assert to_ask(replace(view(SPEC, waits), listed=None), NOW + 31) == []
    assert to_ask(replace(view(SPEC, waits), listed=[listed("m1", ListedState.CREATING)]), NOW + 31) == []


def test_a_batch_is_asked_for_whole_or_given_up() -> None:
    first, second = (machine(f"m{n}", "wanted", batch="m1", batch_size=2) for n in (1, 2))
    assert to_ask(view(SPEC, second, first), NOW) == [(first, second)]
    half = view(SPEC, first)
    assert to_ask(half, NOW) == []
    assert observe(half, NOW).changed["m1"].state == "gone"
    lost = replace(view(SPEC, asked(first, NOW), changed(asked(second, NOW), state="deleting")), listed=None)
    assert observe(lost, NOW).changed["m1"].state == "deleting"
    replaced = replace(view(SPEC, changed(first, state="up", up_at=1.0)), listed=[listed("m1")])
    assert observe(replaced, NOW).changed["m1"].state == "up"


def test_a_machine_is_up_once_all_of_its_hosts_beat() -> None:
    waits = asked(machine("m1", "wanted", hosts=2), NOW)
    seen = replace(view(SPEC, waits), listed=[listed("m1")])
    one = observe(with_agents(seen, agent("a", "m1")), NOW).changed["m1"]
    assert (one.state, one.unseen_since) == ("creating", NOW)
    both = observe(with_agents(seen, agent("a", "m1"), agent("b", "m1")), NOW).changed["m1"]
    assert (both.state, both.up_at, both.unseen_since) == ("up", NOW, None)


def test_a_machine_that_never_boots_is_replaced_after_ten_minutes() -> None:
    booting = machine("m1", "creating", asked_at=1.0, created_at=1.0, unseen_since=NOW - BOOT_SECONDS)
    seen = replace(view(SPEC, booting), listed=[listed("m1")])
    found = observe(seen, NOW)
    assert found.changed["m1"].state == "deleting"
    assert (found.zones["us-a"].kind, "m1" in found.zones["us-a"].text) == ("boot-failure", True)
    assert observe(seen, NOW - 1).changed == {}
    was_up = replace(seen, machines={"m1": changed(booting, state="up", up_at=1.0)})
    assert (observe(was_up, NOW).changed["m1"].state, observe(was_up, NOW).zones) == ("deleting", {})


def test_requests_that_wait_are_withdrawn_if_another_zone_may_be_asked() -> None:
    waits = machine("m1", "creating", asked_at=1.0, created_at=NOW - WAIT_SECONDS)
    seen = replace(view(SPEC, waits, jobs=[job(1)]), listed=[listed("m1", ListedState.WAITING)])
    gone, zones = withdrawn(seen, NOW)
    assert (gone["m1"].state, zones["us-a"].kind) == ("deleting", "stockout")
    assert withdrawn(seen, NOW - 1) == ({}, {})
    assert withdrawn(replace(seen, listed=[listed("m1", ListedState.CREATING)]), NOW)[0] == {}
    only_there = replace(seen, jobs=[job(1, ResourceSpec(zone="us-a"))])
    assert withdrawn(only_there, NOW) == ({}, {}), "it waits on where nothing else would do"
    refused = {"eu-b": refusal(None, "stockout", "", NOW)}
    assert withdrawn(replace(seen, zones=refused), NOW) == ({}, refused)
    low = replace(seen, jobs=[], spec=changed(SPEC, min=1))
    assert withdrawn(low, NOW)[0].keys() == {"m1"}


def test_a_gang_in_one_zone_is_completed_where_its_hosts_are() -> None:
    free = [changed(agent(f"a{n}", ""), zone="eu-b", region="eu") for n in range(3)]
    seen = with_agents(replace(view(), owners=[owner_of_job(gang(8, same="zone"))]), *free)
    assert orders(seen) == [(1, "eu-b", False)]
    assert orders(with_agents(seen)) == [(4, "us-a", False)]
    shut = {"us-a": refusal(None, "stockout", "", NOW), "eu-b": refusal(None, "stockout", "", NOW)}
    assert plan(replace(seen, zones=shut), NOW).scaling.limit == "zones"


def test_why_a_machine_goes_stays_when_its_provider_says_something_else() -> None:
    idle = machine("m1", "draining", up_at=1.0, created_at=1.0, reason="idle for 60 s")
    ended = replace(view(SPEC, idle), listed=[listed("m1", ListedState.LOST, error="the container ended")])
    after = observe(ended, NOW).changed["m1"]
    assert (after.state, after.reason, after.error) == ("deleting", "idle for 60 s", "the container ended")
    left = with_agents(replace(ended, listed=[listed("m1")]), agent("a", "m1", state="left"))
    assert observe(left, NOW).changed["m1"].reason == "idle for 60 s"


def test_nothing_is_made_while_the_provider_does_not_say_what_there_is() -> None:
    blind = replace(view(changed(SPEC, min=1), machine("m1", "wanted"), jobs=[job(n) for n in range(9)]), listed=None)
    assert (plan(blind, NOW).orders, to_ask(blind, NOW)) == ((), [])
    assert plan(blind, NOW).scaling.wanted == 5


def test_a_pool_goes_by_what_it_said_before_until_its_machines_are_gone() -> None:
    tpu, run = changed(TPU, max=2), ProvisioningSpec(provider="cloud_run", zones=["us-east1"])
    before = PoolScaling(machines=1, provisioning=tpu)
    kept = changed(tpu, min=0, max=0)
    assert (in_force(None, before), in_force(run, before)) == (kept, kept)
    assert gone_by(tpu, before, []) == tpu, "it may have some by the next look"
    assert (gone_by(kept, before, ["us-a"]), gone_by(kept, before, None)) == (kept, kept)
    empty = PoolScaling(provisioning=gone_by(kept, before, []))
    assert (in_force(None, empty), in_force(run, empty)) == (None, run)
    moved = changed(tpu, zones=["eu-b"])
    assert in_force(moved, before) == moved
    assert everywhere(moved, before).zones == ["eu-b", "us-a"]
    assert gone_by(moved, before, ["us-a"]) == gone_by(moved, before, None) == everywhere(moved, before)
    here = ProvisioningSpec(provider="local", zones=["here"])
    assert everywhere(here, PoolScaling(provisioning=changed(here, zones=["there"]))).zones == ["here"]


def test_an_outage_without_looks_kills_no_machine() -> None:
    up = machine("m1", "up", up_at=1.0, unseen_since=NOW - 700.0, created_at=1.0)
    seen = replace(view(SPEC, up), listed=[listed("m1")], looked_at=NOW - 690.0)
    after = observe(seen, NOW).changed["m1"]
    assert (after.state, NOW - (after.unseen_since or 0.0)) == ("up", 130.0)


def test_a_machine_that_is_not_listed_is_gone_unless_its_agents_beat() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, unseen_since=NOW - MISSING_SECONDS)
    assert observe(view(SPEC, up), NOW).changed["m1"].state == "gone"
    assert observe(replace(view(SPEC, up), listed=None), NOW).changed == {}
    alive = with_agents(view(SPEC, up), agent("a", "m1"))
    assert observe(alive, NOW).changed["m1"].state == "up"


def test_a_machine_with_an_agent_that_takes_no_work_drains_and_is_replaced() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, hosts=2)
    sick = agent("b", "m1", unfit=True, problem="claims nothing: a chip is held")
    seen = replace(with_agents(view(SPEC, up, jobs=[job(1)]), agent("a", "m1"), sick), listed=[listed("m1")])
    first = observe(seen, NOW).changed["m1"]
    why = "its agent b is unfit: claims nothing: a chip is held"
    assert (first.state, first.unfit_since, first.error) == ("up", NOW, why)
    waits = replace(seen, machines={"m1": first})
    assert observe(waits, NOW + UNFIT_SECONDS - 1).changed == {}
    healed = observe(with_agents(waits, agent("b", "m1")), NOW + 100).changed["m1"]
    assert (healed.state, healed.unfit_since, healed.error) == ("up", None, "")
    after = observe(waits, NOW + UNFIT_SECONDS).changed["m1"]
    assert (after.state, after.reason) == ("draining", why)


def test_an_unfit_machine_is_waited_for_before_another_is_wanted() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    sick = with_agents(view(SPEC, up, jobs=[job(1)]), agent("a", "m1", unfit=True))
    assert (set(demand(sick, NOW).used), demand(sick, NOW).orders) == ({"m1"}, ())
    given_up = with_agents(view(SPEC, changed(up, state="draining"), jobs=[job(1)]), agent("a", "m1", unfit=True))
    assert [order.count for order in demand(given_up, NOW).orders] == [1]
    of_people = with_agents(view(SPEC, jobs=[job(1)]), agent("a", "", unfit=True))
    assert [order.count for order in demand(of_people, NOW).orders] == [1]


def test_a_preempted_machine_is_deleted() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    seen = replace(view(SPEC, up), listed=[listed("m1", ListedState.LOST, error="preempted")])
    after = observe(with_agents(seen, agent("a", "m1")), NOW).changed["m1"]
    assert (after.state, after.error) == ("deleting", "preempted")
    assert to_delete(view(SPEC, after)) == [after]


def test_a_refusal_that_the_list_tells_is_the_zones_answer_once() -> None:
    waits = asked(machine("m1", "wanted"), NOW - 5)
    told = listed("m1", ListedState.LOST, error="none left", error_kind="stockout")
    found = observe(replace(view(SPEC, waits), listed=[told]), NOW)
    assert (found.changed["m1"].state, found.zones["us-a"].kind) == ("deleting", "stockout")
    two = replace(view(SPEC, waits, asked(machine("m2", "wanted"), NOW - 5)), listed=[told, replace(told, name="m2")])
    assert observe(two, NOW).zones["us-a"].times == 1


def test_strangers_are_deleted() -> None:
    """Also one in another zone than its record's, whose call came late; not one that ends already."""
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    late, other, ending = listed("m1", zone="eu-b"), listed("m9"), listed("m8", ListedState.ENDING)
    found = observe(replace(view(SPEC, up), listed=[listed("m1"), late, other, ending]), NOW)
    assert set(found.strangers) == {late, other}
    assert observe(replace(view(SPEC, up), listed=None), NOW).strangers == ()


def test_a_deleted_machine_is_gone_once_no_call_can_be_under_way() -> None:
    never = machine("m1", "deleting", asked_at=NOW - CALL_SECONDS + 1)
    assert observe(replace(view(SPEC, never), listed_at=NOW), NOW).changed == {}
    assert observe(replace(view(SPEC, never), listed_at=NOW), NOW + 600.0).changed == {}
    assert observe(replace(view(SPEC, never), listed_at=NOW + 1), NOW + 1).changed["m1"].state == "gone"
    there = replace(view(SPEC, never), listed=[listed("m1", ListedState.ENDING)])
    assert observe(there, NOW + 1).changed["m1"].state == "deleting"


@pytest.mark.parametrize(("state", "after"), [("deleting", "deleting"), ("up", "up")])
def test_a_list_that_was_asked_for_before_a_machine_was_made_says_nothing_of_it(state: str, after: str) -> None:
    there = machine("m1", state, asked_at=NOW - 300.0, created_at=NOW - 290.0, unseen_since=NOW - 200.0)
    old = replace(view(SPEC, there), listed_at=NOW - 290.0)
    assert observe(old, NOW).changed.get("m1", there).state == after
    assert observe(replace(old, listed_at=NOW - 289.0), NOW).changed["m1"].state == "gone"


def test_a_slice_that_is_taken_away_on_its_way_goes_though_another_of_its_request_is_up() -> None:
    """Nobody asks for it again: that would be for half of the request."""
    pair = {"batch": "m1", "batch_size": 2, "asked_at": NOW - 300.0, "created_at": NOW - 290.0}
    up, lost = machine("m1", "up", up_at=NOW - 200.0, **pair), machine("m2", "creating", **pair)
    seen = replace(view(SPEC, up, lost), listed=[listed("m1")], listed_at=NOW)
    assert observe(seen, NOW).changed["m2"].state == "gone"
    neither = replace(view(SPEC, machine("m1", "creating", **pair), lost), listed_at=NOW)
    assert observe(neither, NOW).changed == {}
    assert [len(batch) for batch in to_ask(neither, NOW)] == [2]


def test_answers_of_a_create() -> None:
    waits = asked(machine("m1", "wanted"), NOW)
    assert created(waits, "op", NOW).created_at == NOW
    assert refused(waits, "stockout", "none").state == "gone"
    assert refused(waits, "unavailable", "lost").state == "creating"
    assert refused(waits, "stockout", "none", again=True).state == "deleting"


def test_what_was_refused_leaves_its_place_to_the_next_zone_at_once() -> None:
    waits = asked(machine("m1", "wanted"), NOW)
    answered = {"us-a": refusal(None, "stockout", "none", NOW)}
    there = {m.name: m for m in [refused(waits, "stockout", "none")] if m.state != "gone"}
    seen = replace(view(changed(SPEC, max=1), jobs=[job(1)]), machines=there, zones=answered)
    assert orders(seen) == [(1, "eu-b", False)]


def test_a_machine_that_is_lost_on_its_way_pauses_its_zone() -> None:
    waits = asked(machine("m1", "wanted"), NOW - 5)
    found = observe(replace(view(SPEC, waits), listed=[listed("m1", ListedState.LOST)]), NOW)
    assert found.zones["us-a"].until > NOW


def test_an_idle_machine_is_drained_and_deleted_when_its_agents_have_left() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0)
    seen = with_agents(view(SPEC, up), agent("a", "m1"))
    idle = plan(seen, NOW).changed["m1"]
    assert (idle.state, idle.idle_since) == ("up", NOW)
    later = replace(seen, machines={"m1": idle})
    assert plan(later, NOW + 59).changed == {}
    drained = plan(later, NOW + 60).changed["m1"]
    assert drained.state == "draining"
    draining = replace(seen, machines={"m1": drained}, listed=[listed("m1")])
    assert to_drain(draining) == ["a"]
    assert observe(draining, NOW + 61).changed == {}
    gone = with_agents(draining, agent("a", "m1", state="left"))
    assert observe(gone, NOW + 62).changed["m1"].state == "deleting"


def test_a_machine_with_work_or_a_placement_stays() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, idle_since=1.0)
    held = {"j": Holding(attempt=1, phase="running")}
    assert plan(with_agents(view(SPEC, up), agent("a", "m1", holdings=held)), NOW).changed["m1"].idle_since is None
    assert plan(with_agents(view(SPEC, up), agent("a", "m1")), NOW).changed["m1"].state == "draining"
    low = with_agents(view(changed(SPEC, min=1), up), agent("a", "m1"))
    assert plan(low, NOW).changed == {}


def test_what_comes_and_is_no_longer_needed_is_given_up() -> None:
    waits = machine("m1", "creating", asked_at=1.0, idle_since=1.0)
    assert plan(view(SPEC, waits), NOW).changed["m1"].state == "deleting"
    assert plan(view(SPEC, changed(waits, state="wanted")), NOW).changed["m1"].state == "gone"
    assert plan(view(SPEC, waits, jobs=[job(1)]), NOW).changed["m1"].state == "creating"


def test_more_than_max_are_drained_the_busy_ones_last() -> None:
    held = {"j": Holding(attempt=1, phase="running")}
    ups = [machine(f"m{n}", "up", up_at=1.0, created_at=1.0) for n in (1, 2)]
    seen = with_agents(view(changed(SPEC, max=1), *ups), agent("a", "m1", holdings=held), agent("b", "m2"))
    assert plan(seen, NOW).changed["m2"].state == "draining"
    assert "m1" not in plan(seen, NOW).changed
    none = plan(replace(seen, spec=changed(SPEC, max=0)), NOW).changed
    assert {name: m.state for name, m in none.items()} == {"m1": "draining", "m2": "draining"}


def test_a_slice_with_a_host_that_leaves_drains_as_a_whole() -> None:
    up = machine("m1", "up", up_at=1.0, created_at=1.0, hosts=2)
    seen = replace(view(SPEC, up), listed=[listed("m1")])
    told = with_agents(seen, agent("a", "m1", drain=True), agent("b", "m1"))
    assert observe(told, NOW).changed["m1"].state == "draining"
    left = with_agents(seen, agent("a", "m1", state="left"), agent("b", "m1"))
    assert observe(left, NOW).changed["m1"].state == "draining"


def test_costs_run_from_the_request_until_the_end() -> None:
    up = machine("m1", "up", created_at=NOW, hourly_cost=2.0)
    assert cost_so_far(up, NOW + 1800) == 1.0
    assert cost_so_far(changed(up, ended_at=NOW + 900), NOW + 1800) == 0.5
    assert cost_so_far(changed(up, created_at=None), NOW) == 0.0
    assert cost_so_far(changed(up, hourly_cost=None), NOW) is None


def test_an_order_says_why() -> None:
    assert plan(view(jobs=[job(1)]), NOW).orders == (Order(1, "us-a", reason="1 waiting jobs have no room"),)


def test_a_gang_that_finds_the_pool_full_says_so() -> None:
    owners = [owner_of_job(changed(gang(4, spread=True), id=f"g-{number}")) for number in (1, 2)]
    found = plan(replace(view(), owners=owners), NOW)
    assert ([order.count for order in found.orders], found.scaling.limit) == ([4], "")
    other = owner_of_job(changed(gang(2, cpu=4.0), id="g-3"))
    cut = plan(replace(view(), owners=[owners[0], other]), NOW)
    assert ([order.count for order in cut.orders], cut.scaling.limit) == ([4], "max")


def test_a_large_cluster_is_planned_with_few_looks_at_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of one zone are compared with a kind of work once, however many there are."""
    looked: list[str] = []

    def counted(host: HostView, part: Part, shape: Shape) -> list[str]:
        looked.append(host.agent)
        return lacks(host, part, shape)

    monkeypatch.setattr("fray_coordinator.protocol.scaling.demand.lacks", counted)
    coming = [machine(f"m{number}", "creating", asked_at=NOW) for number in range(200)]
    seen = view(changed(SPEC, max=1000), *coming, jobs=[job(number) for number in range(900)])
    assert orders(seen) == [(250, "us-a", False)]
    assert len(looked) <= 2
