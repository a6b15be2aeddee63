"""The machines that a pool should have: within its bounds, in zones that grant them, and only while they are needed."""

from dataclasses import replace

from msgspec.structs import replace as changed

from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.protocol.scaling.demand import Order
from fray_coordinator.protocol.scaling.machines import (
    observe,
    to_ask,
    to_drain,
)
from fray_coordinator.protocol.scaling.planning import WAIT_SECONDS, confirmed, plan, wanted, withdrawn
from fray_coordinator.protocol.scaling.provisioning import (
    account_of,
    accounts,
    in_force,
    still_managed,
    with_others,
)
from fray_coordinator.protocol.scaling.shares import cost_so_far
from fray_coordinator.protocol.scaling.view import (
    ListedState,
    of_account,
    open_zones,
    place_of,
    refusal,
    remembered,
    without_unread,
)
from fray_layouts.records import (
    CommandSettings,
    Holding,
    PoolScaling,
    ProvisioningSpec,
    TpuSettings,
)
from fray_layouts.spec import ResourceSpec
from tests.support.scaling_views import NOW, SPEC, TPU, agent, gang, job, listed, machine, orders, view, with_agents


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


def test_a_refused_zone_is_avoided_and_the_next_one_is_asked() -> None:
    seen = replace(view(jobs=[job(1)]), zones={"us-a": refusal(None, "stockout", "none left", NOW)})
    assert orders(seen) == [(1, "eu-b", False)]
    both = {zone: refusal(None, "stockout", "none left", NOW) for zone in SPEC.zones}
    found = plan(replace(seen, zones=both), NOW)
    assert (found.orders, found.scaling.limit) == ((), "zones")
    assert plan(replace(seen, zones=both), NOW + 61).orders[0].zone == "us-a"


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


def test_a_gang_whose_batch_exceeds_the_bounds_gets_no_part_of_it() -> None:
    there = machine("m1", "draining")
    seen = replace(view(changed(TPU, max=2), there), owners=[owner_of_job(gang(8, 2))])
    assert (plan(seen, NOW).orders, plan(seen, NOW).scaling.limit) == ((), "max")


def test_two_scalers_at_once_do_not_exceed_max() -> None:
    """The scaler that lists last counts the other's intents, and takes its own back."""
    spec = changed(SPEC, max=1)
    mine, other = machine("m2", "wanted"), machine("m1", "wanted")
    assert set(confirmed(view(spec, mine, other), NOW)) == {"m2"}
    assert set(confirmed(view(spec, mine, machine("m3", "creating")), NOW)) == {"m2"}
    assert confirmed(view(spec, mine), NOW) == {}
    paid = changed(SPEC, max_hourly_cost=3.0)
    dear = [changed(m, hourly_cost=2.0) for m in (mine, other)]
    assert set(confirmed(view(paid, *dear), NOW)) == {"m2"}


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


def test_no_machine_is_made_while_the_provider_cannot_list() -> None:
    blind = replace(view(changed(SPEC, min=1), machine("m1", "wanted"), jobs=[job(n) for n in range(9)]), listed=None)
    assert (plan(blind, NOW).orders, to_ask(blind, NOW)) == ((), [])
    assert plan(blind, NOW).scaling.wanted == 5


def test_a_pool_is_scaled_wherever_it_may_have_machines() -> None:
    tpu, run = changed(TPU, max=2), ProvisioningSpec(provider="cloud_run", zones=["us-east1"])
    assert list(accounts(run, [tpu], []).values()) == [tpu, run], "where the pool may have some comes last"
    assert (in_force(run, tpu), in_force(None, tpu)) == (changed(tpu, min=0, max=0),) * 2
    moved = changed(tpu, zones=["eu-b"], tpu=TpuSettings(project="team"))
    there = machine("m1", "up", provider="tpu", zone="us-c", project="lab")
    assert [*accounts(moved, [tpu], [there])] == [("tpu", ""), ("tpu", "lab"), ("tpu", "team")]
    assert [*accounts(None, [], [there])] == [("tpu", "lab")]
    (found,) = accounts(moved, [changed(moved, zones=["us-a"])], []).values()
    assert (found.zones, in_force(moved, found)) == (["eu-b", "us-a"], moved)
    here = ProvisioningSpec(provider="local", zones=["here"])
    assert [*accounts(here, [changed(here, zones=["there"])], []).values()] == [here]


def test_a_place_that_may_still_have_machines_is_listed_again() -> None:
    closed = changed(TPU, min=0, max=0)
    assert still_managed(TPU, TPU, []) == [TPU], "it may have some by the next run"
    assert still_managed(closed, closed, []) == []
    assert still_managed(closed, closed, ["us-a"]) == still_managed(closed, closed, None) == [closed]
    moved, found = changed(TPU, zones=["eu-b"]), changed(TPU, zones=["eu-b", "us-a"])
    assert still_managed(moved, found, ["us-a"]) == still_managed(moved, found, None) == [found]


def test_the_accounts_that_another_run_adds_meanwhile_are_kept() -> None:
    lab, team = (changed(TPU, tpu=TpuSettings(project=name)) for name in ("lab", "team"))
    mine, theirs = {"p": PoolScaling(accounts=[team])}, {"p": PoolScaling(accounts=[lab, team])}
    assert with_others(mine, theirs, {}, {"p"})["p"].accounts == [lab, team]
    assert with_others(mine, theirs, theirs, {"p"}) == mine, "this run has found none there"
    assert with_others({}, theirs, {}, {"p"})["p"].accounts == [lab, team]
    assert with_others({}, theirs, {}, ()) == theirs, "a run leaves other pools as they are"


def test_machines_elsewhere_count_and_are_not_managed() -> None:
    spec = changed(SPEC, max=4, max_hourly_cost=10.0)
    here = machine("m1", "up", hourly_cost=2.0)
    there = machine("m2", "up", hourly_cost=3.0, provider="tpu", project="lab")
    seen = of_account(view(spec, here, there), account_of(spec))
    assert (seen.machines, seen.spec.max, seen.spec.max_hourly_cost) == ({"m1": here}, 3, 7.0)


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


def test_a_coming_machine_that_is_no_longer_needed_is_given_up() -> None:
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


def test_costs_run_from_the_request_until_the_end() -> None:
    up = machine("m1", "up", created_at=NOW, hourly_cost=2.0)
    assert cost_so_far(up, NOW + 1800) == 1.0
    assert cost_so_far(changed(up, ended_at=NOW + 900), NOW + 1800) == 0.5
    assert cost_so_far(changed(up, created_at=None), NOW) == 0.0
    assert cost_so_far(changed(up, hourly_cost=None), NOW) is None


def test_machines_whose_records_cannot_be_read_count_as_there_and_as_the_dearest() -> None:
    spec = changed(SPEC, min=2, max=3, max_hourly_cost=10.0)
    seen = replace(view(spec), prices={"us-a": 4.0, "eu-b": 3.0}, listed=[listed("m1"), listed("m2")])
    left = without_unread(seen, ["m1"])
    assert (left.spec.min, left.spec.max, left.spec.max_hourly_cost) == (1, 2, 6.0)
    assert left.listed == [listed("m2")], "it is no stranger"


def test_an_intent_says_how_its_machine_is_made_and_what_it_costs() -> None:
    spec = changed(SPEC, command=CommandSettings(list=["x"], create=["x"], delete=["x"]), zones=["us-a"])
    pool = replace(view(spec), prices={"us-a": 2.5})
    (intent,) = wanted(pool, Order(1, "us-a", False, "a job waits"), ["m1"], NOW)
    assert (intent.command, intent.hourly_cost, intent.zone) == (spec.command, 2.5, "us-a")
