"""Every invariant is shown to fire: by a broken variant of the code, or here, on what is brought about by hand."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from fray_agents.agent.held import HeldLease
from fray_coordinator.errors import StoreRefused
from fray_coordinator.fsck import Problem
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import ANY, Object
from fray_coordinator.store.memory import MemoryContents
from fray_layouts.object_keys import AsideKeys, JobKeys
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    EndpointRecord,
    JobLease,
    JobRecord,
    NameRecord,
    StopRequest,
)
from fray_layouts.spec_parsing import parse_spec
from tests.simulation import calm, upkeep_invariants
from tests.simulation.actors import ActorWorld
from tests.simulation.agent_invariants import the_dead_stay_dead
from tests.simulation.effects import Run
from tests.simulation.gang_breaches import BREACHES
from tests.simulation.gang_rules import RULES
from tests.simulation.gangs import GangWorld
from tests.simulation.invariants import (
    Broken,
    a_deleted_name_is_never_born_again,
    a_working_holder_keeps_the_pass,
    the_outage_grace_ends,
)
from tests.simulation.job_invariants import nothing_leaves_a_terminal_state, only_transitions_of_the_table
from tests.simulation.loop import Participant
from tests.simulation.machine_breaches import BREACHES as MACHINE_BREACHES
from tests.simulation.queues import QueueWorld
from tests.simulation.stage import Stage
from tests.simulation.strange_roots import StrangeRoots
from tests.simulation.strength import VARIANTS, WORLDS, Catch, by_rule, by_test, heading
from tests.simulation.upkeep_invariants import a_timed_out_attempt_ends_as_such
from tests.simulation.watching import Change
from tests.simulation.work import drawn_spec
from tests.simulation.world import World

SIMULATION = Path(__file__).parent
TABLES = SIMULATION.parents[1] / "docs" / "simulation.md"

JOB = JobRecord(
    id="quick-1", spec=parse_spec(drawn_spec(random.Random(0), "quick")), status="pending", submitted_at=0.0
)
RUN = Run("quick-1", 1, "agent", "h1", 0.0)
HERE = Participant("here")


def a_pending_job_succeeds() -> None:
    change = Change(JOB.id, JOB, replace(JOB, status=str(Status.SUCCEEDED)), {}, {}, HERE)
    only_transitions_of_the_table(World(0).watching, change)


def a_job_that_ended_runs_again() -> None:
    ended = replace(JOB, status=str(Status.FAILED))
    change = Change(JOB.id, ended, replace(ended, status=str(Status.RUNNING)), {}, {}, HERE)
    nothing_leaves_a_terminal_state(World(0).watching, change)


def a_deleted_job_is_back() -> None:
    world = World(0)
    world.watching.gone["jobs/quick-1.json"] = 1.0
    a_deleted_name_is_never_born_again(world.watching, Change(JOB.id, None, JOB, {}, {}, HERE))


def a_dead_agent_is_back() -> None:
    dead = AgentRecord(id="agent", host="h1", pool="default", state="dead")
    the_dead_stay_dead(World(0).watching, Change(dead.id, dead, replace(dead, state="live"), {}, {}, HERE))


def a_stop_is_never_heard() -> None:
    world = World(0)
    asked = StopRequest(at=0.0, reason="enough")
    lease = JobLease(agent="agent", host="h1", since=0.0)
    world.watching.jobs[JOB.id] = replace(JOB, status=str(Status.RUNNING), stop=asked, lease=lease)
    world.watching.stopped[JOB.id] = 0.0
    world.loop.now = 1e6
    with mock.patch.object(world, "works", return_value=True):
        calm.check_mail(world)


def a_task_runs_for_ever() -> None:
    world = World(0)
    world.watching.landed[RUN.agent] = (0.0, 5.0)
    the_outage_grace_ends(world.watching, dataclasses.replace(RUN, end=1e6))


def something_does_not_fit() -> None:
    world = World(0)
    with mock.patch.object(world, "troubles", return_value=[Problem("jobs/quick-1.json", "it is odd", "")]):
        calm.check_fsck(world)


def an_attempt_is_started_again() -> None:
    world = World(0)
    world.task_began(dataclasses.replace(RUN))
    world.task_began(dataclasses.replace(RUN))
    raise_what_broke(world)


def a_waiter_sees_what_is_not_so() -> None:
    world = World(0)
    world.watching.jobs[JOB.id] = JOB
    world.outcome_seen(replace(JOB, status=str(Status.SUCCEEDED)))
    raise_what_broke(world)


def a_task_is_left() -> None:
    world = World(0)
    world.hosts[0].running.append(mock.Mock(run=RUN))
    calm.check(world)


def an_entry_is_left() -> None:
    world = World(0)
    world.watching.jobs[JOB.id] = replace(JOB, status=str(Status.SUCCEEDED))
    world.watching.entries[JOB.id] = [1]
    calm.check(world)


def a_claim_is_never_resolved() -> None:
    world = World(0)
    held = HeldLease(entry_of(JOB))
    world.hosts[0].agent = mock.Mock(id="agent", member=mock.Mock(leases=mock.Mock(held={JOB.id: held}, placements={})))
    calm.check_held(world)


def a_call_is_in_the_state_twice() -> None:
    world = ActorWorld(0)
    world.restored(dataclasses.replace(RUN), ["call", "call"])
    raise_what_broke(world)


def an_incarnation_is_left_out() -> None:
    world = ActorWorld(0)
    world._name_written("names/ns/actor/a.json", NameRecord(incarnation=1))
    world._name_written("names/ns/actor/a.json", NameRecord(incarnation=3))


def an_endpoint_of_nobody_is_left() -> None:
    world = ActorWorld(0)
    endpoint = EndpointRecord(namespace="ns", name="a", actor_id="x", job="gone", address="h1:1", nonce="n", host="h1")
    world._endpoints["actors/ns/a/x.json"] = (endpoint, 0.0)
    world.loop.now = 1e6
    world._check_endpoints(0.0)


def a_consumer_fails() -> None:
    world = QueueWorld(0)
    world._loop_error({"message": "a task ended", "exception": ValueError("odd")})
    raise_what_broke(world)


def something_else_is_delivered() -> None:
    world = QueueWorld(0)
    world.consumers[HERE] = mock.Mock(held={})
    segment, delivery = mock.Mock(out={"s/0/1": mock.Mock(suspect=False)}), mock.Mock(id="s/0/1")
    delivery.item.body = b"never pushed"
    HERE.context().run(world.handed_out, segment, delivery)
    raise_what_broke(world)


def a_harmless_item_is_a_dead_letter() -> None:
    world = QueueWorld(0)
    world.known.dead.add("harmless")
    world._check_letters()


def an_agent_ends_by_what_it_read() -> None:
    world = World(0)
    world.agent_failed(world.hosts[0], RecursionError("deep"))
    raise_what_broke(world)


def an_agent_ends_by_a_refusal() -> None:
    world = World(0)
    world.agent_failed(world.hosts[0], StoreRefused("403"))
    raise_what_broke(world)


def nobody_is_told_of_an_odd_object() -> None:
    world = World(0)
    world.strangers._put("jobs/garbage.json", b"[", "odd object")
    with mock.patch.object(world, "troubles", return_value=[]):
        calm.check_named(world)


def nobody_runs_the_pass() -> None:
    world = World(0)
    world.loop.now = world.watching.repaired = 1e6
    calm.check_services(world)


def nobody_repairs() -> None:
    world = World(0)
    world.loop.now = world.watching.passed = 1e6
    calm.check_services(world)


def the_pass_goes_round() -> None:
    world = World(0)
    world.stormy, world.loop.now = False, 1e6
    world.agents["first"] = mock.Mock()
    world.agents["first"].member.leaving = False
    with mock.patch.object(world, "works", return_value=True):
        a_working_holder_keeps_the_pass(world.watching, "first", "second")


def a_job_is_dropped() -> None:
    world = World(0)
    lease = JobLease(agent="agent", host="h1", since=0.0)
    world.watching.jobs[JOB.id] = replace(JOB, status=str(Status.RUNNING), lease=lease)
    world.agents["agent"] = mock.Mock()
    with (
        mock.patch.object(world, "works", return_value=True),
        mock.patch.object(world, "holds_in_memory", return_value=False),
    ):
        for world.loop.now in (0.0, 1e6):
            world.watching.passed = world.watching.repaired = world.loop.now
            calm.check_services(world)


def a_write_lands_in_another_cluster() -> None:
    world = World(0)
    world.connections[HERE] = mock.Mock()
    StrangeRoots(world, 0.0, lambda begin, end: None)
    world.storage.turn_to(MemoryContents())
    put = world.storage.backend.put("jobs/quick-1.json", b"{}", ANY)
    world.storage.perform("jobs/quick-1.json", lambda: put, HERE, sent=1e3)
    raise_what_broke(world)


def a_timed_out_job_counts_as_exited() -> None:
    world = World(0)
    lease = JobLease(agent="agent", host="h1", since=0.0)
    running = replace(JOB, status=str(Status.RUNNING), lease=lease)
    ended = replace(running, status=str(Status.FAILED), exit=AttemptExit(kind="exited", code=1))
    world.effects.runs[JOB.id, 1, 0] = dataclasses.replace(RUN, how="timeout", end=1.0, told=True)
    with mock.patch.object(world, "acts_for", return_value=True):
        a_timed_out_attempt_ends_as_such(world.watching, Change(JOB.id, running, ended, {}, {}, HERE))


def a_sound_record_is_set_aside() -> None:
    world = World(0)
    sound = Object(msgspec.json.encode(JOB), "1", 0.0)
    aside = AsideKeys.key(JobKeys.key(JOB.id), 0.0, "0" * 16)
    upkeep_invariants.on_write(world.watching, aside, None, sound, HERE)


def nobody_takes_up_work() -> None:
    world = World(0)
    with (
        mock.patch.object(calm, "_is_quiet", return_value=True),
        mock.patch.object(world, "spawn", side_effect=lambda owner, work: work.close()),
        mock.patch.object(world.loop, "advance", side_effect=partial(setattr, world.loop, "now")),
    ):
        calm.check_woken(world)


SHOWN: dict[str, Callable[[], None]] = (
    {
        "a quiet cluster takes up work": nobody_takes_up_work,
        "nobody works in another cluster": a_write_lands_in_another_cluster,
        "only transitions of the table": a_pending_job_succeeds,
        "nothing leaves a terminal state": a_job_that_ended_runs_again,
        "a deleted name is never born again": a_deleted_job_is_back,
        "the dead stay dead": a_dead_agent_is_back,
        "no object ends an agent": an_agent_ends_by_what_it_read,
        "no refusal ends an agent": an_agent_ends_by_a_refusal,
        "every odd object is named": nobody_is_told_of_an_odd_object,
        "the pass goes on": nobody_runs_the_pass,
        "the repair goes on": nobody_repairs,
        "a working holder keeps the pass": the_pass_goes_round,
        "a running job is listed by its holder or taken back": a_job_is_dropped,
        "mail is not lost": a_stop_is_never_heard,
        "the outage grace ends": a_task_runs_for_ever,
        "fsck finds nothing": something_does_not_fit,
        "an attempt runs once": an_attempt_is_started_again,
        "an outcome that was seen stands": a_waiter_sees_what_is_not_so,
        "no task outlives its job": a_task_is_left,
        "no entry outlives its job": an_entry_is_left,
        "a timed-out attempt ends as such": a_timed_out_job_counts_as_exited,
        "only what cannot be used is set aside": a_sound_record_is_set_aside,
        "nothing is held for ever": a_claim_is_never_resolved,
        "no call is applied twice": a_call_is_in_the_state_twice,
        "a name's incarnations grow one by one": an_incarnation_is_left_out,
        "no endpoint outlives its job for long": an_endpoint_of_nobody_is_left,
        "nobody fails": a_consumer_fails,
        "only what was pushed is delivered": something_else_is_delivered,
        "no harmless item is condemned": a_harmless_item_is_a_dead_letter,
    }
    | BREACHES
    | MACHINE_BREACHES
)


@pytest.mark.parametrize("invariant", SHOWN)
def test_an_invariant_fires(invariant: str) -> None:
    with pytest.raises(Broken) as caught:
        SHOWN[invariant]()
    assert caught.value.invariant == invariant


def test_every_invariant_is_shown_to_fire_by_a_variant_or_above() -> None:
    by_variants = set(re.findall(r"^\| .+ \| ([a-z][^|]+) \| \d+ \|$", TABLES.read_text(), re.MULTILINE))
    assert set(names_of_invariants()) == by_variants | SHOWN.keys()


def test_every_rule_of_gangs_is_broken_by_a_variant() -> None:
    assert {variant.rule for variant in GangWorld.variants.values()} == RULES.keys()


def test_the_tests_that_catch_variants_are_there() -> None:
    root = Path(__file__).parents[2]
    for world in WORLDS:
        for variant in world.variants.values():
            path, _, test = variant.test.partition("::")
            assert not test or f"def {test}(" in (root / path).read_text(), variant.test


def test_the_table_of_gangs_has_all_rules_with_their_variants_and_what_catches_them() -> None:
    table = TABLES.read_text().partition(heading(GangWorld) + "\n")[2].partition("\n\n")[0].splitlines()
    for row, name in zip(table, by_rule(GangWorld), strict=True):
        test = VARIANTS[name].test
        sure = re.escape(Catch(name, by_test(test) if test else "INVARIANT", None if test else 1).row())
        assert re.fullmatch(sure.replace("INVARIANT", "[a-z][^|]+").replace(r"\ 1\ \|", r" \d+ \|"), row), row


def names_of_invariants() -> Iterator[str]:
    """What `Broken` is made with: a name that stands there, or one that the function has given to `name`."""
    for module in SIMULATION.glob("*.py"):
        for function in ast.walk(ast.parse(module.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not module.name.startswith("test_"):
                yield from names_in(function)


def names_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    nodes = list(ast.walk(function))
    given = [node.args[0] for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Broken"]
    if any(isinstance(name, ast.Name) for name in given):
        given += [n.value for n in nodes if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "name"]
    yield from (name.value for name in given if isinstance(name, ast.Constant) and isinstance(name.value, str))


def raise_what_broke(world: Stage) -> None:
    assert world.loop.broken is not None
    raise world.loop.broken


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sound", [False, True])
def test_every_broken_variant_swaps_what_is_there(world: type[Stage], sound: bool) -> None:
    for name in world.variants:
        with world.variants.applied(name, sound):
            pass


@pytest.mark.parametrize("world", WORLDS)
def test_every_broken_variant_takes_what_the_sound_code_takes(world: type[Stage]) -> None:
    for variant in world.variants.values():
        for owner, name, new in [*variant.setting, *variant.breaks()]:
            old = inspect.unwrap(getattr(owner, name))
            if inspect.isfunction(old) and inspect.isfunction(new):
                given = [p for p in inspect.signature(old).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
                inspect.signature(new).bind(*given)
                assert new.__module__ == old.__module__ or not optional(new) - optional(old), variant


def optional(function: Callable[..., object]) -> set[str]:
    """The parameters that may be left out, and that callers give by name."""
    found = inspect.signature(function).parameters.values()
    return {p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty}
