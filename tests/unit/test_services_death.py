"""Death by observation, burial, and the pass that does both, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fray_coordinator import burial
from fray_coordinator.coordinate import Pass
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol.schedule import entry_of
from fray_coordinator.store.api import ANY
from fray_coordinator.watch import Watch
from fray_layouts.names import Agents, Jobs
from fray_layouts.records import AgentRecord, Holding, Settings, Suspect
from tests.support.participants import Hand, agent_now, job_now, join, launch, pass_now, passes
from tests.support.virtual import Cluster, run

DEATH = 25.0
LOOK = 8.0


async def watched(watch: Watch, seconds: float, suspects: dict[str, Suspect] | None = None) -> dict[str, Suspect]:
    """Look again and again, as a pass does."""
    suspects = suspects or {}
    end = watch.core.clock.boottime() + seconds
    while watch.core.clock.boottime() < end:
        suspects = await watch.look(suspects)
        await watch.core.clock.sleep(LOOK)
    return suspects


def test_a_silent_agent_is_dead_after_the_stated_time_and_not_before() -> None:
    async def main(cluster: Cluster) -> None:
        watch = Watch(await cluster.core())
        await join(cluster, "a")
        suspects: dict[str, Suspect] = {}
        while (await agent_now(watch.core, "a")).state == "live":
            suspects = await watch.look(suspects)
            await cluster.clock.sleep(LOOK)
        silent = cluster.clock.boottime() - LOOK
        assert DEATH <= silent <= DEATH + 2 * LOOK

    run(main)


def test_an_agent_that_beats_lives_for_ever() -> None:
    async def main(cluster: Cluster) -> None:
        watch, agent = Watch(await cluster.core()), await join(cluster, "a")
        beating = asyncio.create_task(agent.beat_for_ever())
        await watched(watch, 3600.0)
        assert (await agent_now(watch.core, "a")).state == "live"
        beating.cancel()

    run(main)


def test_an_idle_agent_is_given_the_time_that_it_promised() -> None:
    async def main(cluster: Cluster) -> None:
        watch = Watch(await cluster.core())
        await join(cluster, "a", interval=60.0)
        suspects = await watched(watch, 290.0)
        assert (await agent_now(watch.core, "a")).state == "live"
        await watched(watch, 30.0, suspects)
        assert (await agent_now(watch.core, "a")).state == "dead"

    run(main)


def test_an_outage_kills_nobody() -> None:
    async def main(cluster: Cluster) -> None:
        core = await cluster.core()
        agents = [await join(cluster, name) for name in ("a", "b")]
        watch = Watch(core)
        suspects = await watched(watch, 60.0, {})
        beating = [asyncio.create_task(_through_outages(agent)) for agent in agents]
        suspects = await watched(watch, 30.0, suspects)
        cluster.cut()
        for _ in range(4):
            with pytest.raises(StoreUnavailable):
                await watch.look(suspects)
        cluster.cut(False)
        await watched(watch, 300.0, suspects)
        assert {(await agent_now(core, name)).state for name in ("a", "b")} == {"live"}
        for task in beating:
            task.cancel()

    async def _through_outages(agent: Hand) -> None:
        while True:
            try:
                await agent.beat()
            except StoreUnavailable:
                continue
            await agent.core.clock.sleep(5.0)

    settings = Settings(idle_beat_interval=5.0)
    run(main, settings)


def test_a_frozen_observer_kills_nobody() -> None:
    """It looks, freezes for an hour, and looks again at an agent that beat all the time but for the last moment."""

    async def main(cluster: Cluster) -> None:
        watch, agent = Watch(await cluster.core()), await join(cluster, "a")
        suspects = await watch.look({})
        await cluster.clock.sleep(3600.0)
        suspects = await watch.look(suspects)
        await cluster.clock.sleep(3600.0)
        suspects = await watch.look(suspects)
        assert suspects["a"].age == 0.0
        assert await agent.beat()

    run(main)


def test_a_beat_between_the_look_and_the_verdict_saves_the_agent() -> None:
    async def main(cluster: Cluster) -> None:
        agent = await join(cluster, "a")
        watch = Watch(await cluster.core())
        suspects = await watched(watch, 4 * LOOK - 1)

        async def in_time() -> None:
            assert await agent.beat()

        cluster.ways[-1].before["put", "agents/"] = in_time
        await watch.look(suspects)
        assert cluster.ways[-1].before == {}, "the observer meant to declare it dead"
        assert (await agent_now(watch.core, "a")).state == "live"

    run(main)


def test_many_at_once_get_one_more_time_out_and_then_die() -> None:
    async def main(cluster: Cluster) -> None:
        for name in "abc":
            await join(cluster, name)
        watch = Watch(await cluster.core())
        suspects = await watched(watch, 41.0)
        assert all(suspects[name].spared for name in "abc")
        await watched(watch, 41.0, suspects)
        assert [(await agent_now(watch.core, name)).state for name in "abc"] == ["dead"] * 3

    run(main)


# --- burial ------------------------------------------------------------------------------------------------------


def test_a_dead_agents_job_is_put_back_and_its_zombie_can_change_nothing() -> None:
    async def main(cluster: Cluster) -> None:
        user, dead = await cluster.core(), await join(cluster, "a")
        job = await launch(user)
        held = await dead.claim()
        await user.store.delete(entry_of(job).key())
        await watched(Watch(user), 60.0)
        back = await job_now(user, job.id)
        assert (back.status, back.attempt, back.failures, back.preemptions) == ("pending", 2, 0, 1)
        assert cluster.keys("pending/") == [entry_of(back).key()]
        assert (await agent_now(user, "a")).buried
        assert not await dead.beat()
        other = await (await join(cluster, "b")).claim()
        zombie = await dead.end(held)
        assert zombie == other.record

    run(main)


def test_a_commit_that_lands_before_the_burial_counts() -> None:
    async def main(cluster: Cluster) -> None:
        user, dead = await cluster.core(), await join(cluster, "a")
        job = await launch(user)
        held = await dead.claim()
        observer = await cluster.core()

        async def in_time() -> None:
            await dead.end(held)

        cluster.ways[-1].before["put", "jobs/"] = in_time
        await watched(Watch(observer), 60.0)
        assert (await job_now(user, job.id)).status == "succeeded"
        assert (await agent_now(user, "a")).buried
        assert cluster.keys("pending/") == []

    run(main)


@pytest.mark.parametrize("step", [("put", "jobs/"), ("put", "pending/"), ("delete", "pending/"), ("put", "agents/")])
def test_a_burial_that_was_cut_short_is_finished_by_the_next(step: tuple[str, str]) -> None:
    async def main(cluster: Cluster) -> None:
        user, dead = await cluster.core(), await join(cluster, "a")
        job = await launch(user)
        await dead.claim()
        await user.store.delete(entry_of(job).key())
        watch = Watch(user)
        await _declare_dead(user, "a")

        async def die() -> None:
            raise RuntimeError("killed")

        mortal = Watch(await cluster.core())
        cluster.ways[-1].before[step] = die
        with pytest.raises(RuntimeError):
            await mortal.look({})
        assert not (await agent_now(user, "a")).buried
        await watch.look({})
        back = await job_now(user, job.id)
        assert (back.status, back.attempt) == ("pending", 2)
        assert cluster.keys("pending/") == [entry_of(back).key()]
        assert (await agent_now(user, "a")).buried

    run(main)


def test_a_job_that_cannot_be_read_keeps_no_other_from_being_put_back() -> None:
    async def main(cluster: Cluster) -> None:
        user, dead = await cluster.core(), await join(cluster, "a")
        odd, *sound = [(await launch(user)).id for _ in range(20)]
        for _ in range(20):
            held = await dead.claim(listed=False)
            await user.store.delete(entry_of(held.record).key())
        dead.holding = {job: Holding(attempt=1, phase="running") for job in (odd, *sound)}
        await dead.beat()
        lies = await user.store.get(Jobs.key(odd))
        assert lies is not None
        await user.store.put(Jobs.key(odd), b"{}", ANY)
        await _declare_dead(user, "a")
        watch = Watch(user)
        await watch.look({})
        assert {(await job_now(user, job)).status for job in sound} == {"pending"}
        assert len(cluster.keys("pending/")) == len(sound)
        assert odd in watch.problems[Agents.key("a")]
        assert not (await agent_now(user, "a")).buried
        await user.store.put(Jobs.key(odd), lies.data, ANY)
        await watch.look({})
        assert (await job_now(user, odd)).status == "pending"
        assert (await agent_now(user, "a")).buried

    run(main)


async def _declare_dead(core: Core, name: str) -> None:
    agent = await core.records.read(Agents.key(name), AgentRecord)
    assert agent is not None
    assert await burial.kill(core, agent) is not None


def test_a_claim_that_lands_after_its_agents_burial_is_found_through_its_entry() -> None:
    async def main(cluster: Cluster) -> None:
        user, late = await cluster.core(), await join(cluster, "a")
        job = await launch(user)

        async def dies_first() -> None:
            await _declare_dead(user, "a")
            await Watch(user).look({})

        cluster.ways[-1].before["put", "jobs/"] = dies_first
        await late.try_claim()
        assert (await job_now(user, job.id)).status == "running"
        await Pass(user, "p").turn()
        back = await job_now(user, job.id)
        assert (back.status, back.attempt) == ("pending", 2)
        assert cluster.keys("pending/") == [entry_of(back).key()]

    run(main)


def test_a_job_that_kills_its_hosts_fails_before_it_takes_them_all() -> None:
    async def main(cluster: Cluster) -> None:
        user = await cluster.core()
        job = await launch(user, name="killer", max_retries_failure=0)
        for name in ("a", "b", "c"):
            victim = await join(cluster, name)
            await victim.claim()
            await watched(Watch(user), 60.0)
        end = await job_now(user, job.id)
        assert end.exit is not None
        assert (end.status, end.attempt, end.failures, end.preemptions) == ("failed", 3, 1, 2)
        assert "kills its hosts" in end.exit.message
        assert cluster.keys("pending/") == []

    run(main)


def test_what_cannot_be_read_among_the_agents_is_reported_and_the_rest_is_watched() -> None:
    async def main(cluster: Cluster) -> None:
        user = await cluster.core()
        await join(cluster, "a")
        await user.store.put("agents/odd.json", b"[]", ANY)
        await passes(Pass(user, "p"), 60.0)
        assert (await agent_now(user, "a")).state == "dead"
        assert list((await pass_now(user)).problems) == ["agents/odd.json"]

    run(main)


# --- the pass and its lease --------------------------------------------------------------------------------------


def test_one_of_several_runs_the_pass_and_another_takes_over_when_it_dies() -> None:
    async def main(cluster: Cluster) -> None:
        first, second = Pass(await cluster.core(), "p1"), Pass(await cluster.core(), "p2")
        assert await first.turn()
        for _ in range(20):
            await cluster.clock.sleep(LOOK)
            assert await first.turn()
            assert not await second.turn()
        died = cluster.clock.boottime()
        while not await second.turn():
            await cluster.clock.sleep(LOOK)
        assert 3 * 10.0 - LOOK <= cluster.clock.boottime() - died <= 3 * 10.0 + 2 * LOOK
        assert not await first.turn(), "the old holder sees that it lost the lease"

    run(main, Settings(pass_interval=10.0))


def test_a_holder_whose_record_cannot_be_read_is_followed_by_another() -> None:
    async def main(cluster: Cluster) -> None:
        first, second = Pass(await cluster.core(), "p1"), Pass(await cluster.core(), "p2")
        assert await first.turn()
        await first.core.store.put(Agents.key("p1"), b"{}", ANY)
        await passes(second, 60.0)
        assert (await pass_now(second.core)).holder == "p2"
        assert Agents.key("p1") in (await pass_now(second.core)).problems

    run(main)


def test_a_holder_that_lost_its_lease_in_the_middle_of_a_pass_does_not_take_it_back() -> None:
    async def main(cluster: Cluster) -> None:
        first = Pass(await cluster.core(), "p1")
        await first.turn()
        await cluster.clock.sleep(LOOK)

        async def frozen_meanwhile() -> None:
            second = Pass(await cluster.core(), "p2")
            await passes(second, 60.0)
            assert second.holds_lease

        cluster.ways[0].before["list", "inbox/"] = frozen_meanwhile
        await first.turn()
        assert not first.holds_lease
        assert (await pass_now(first.core)).holder == "p2"

    run(main)


def test_the_time_as_holder_does_not_count_against_whoever_took_the_lease_over() -> None:
    async def main(cluster: Cluster) -> None:
        first = Pass(await cluster.core(), "p1")
        await passes(first, 120.0)
        successor = await join(cluster, "p2")
        beating = asyncio.create_task(successor.beat_for_ever())

        async def frozen_meanwhile() -> None:
            await passes(Pass(successor.core, "p2", lambda: 5), 60.0)

        cluster.ways[0].before["list", "inbox/"] = frozen_meanwhile
        await first.turn()
        assert not await first.turn(), "the successor has only just renewed the lease"
        assert (await agent_now(first.core, "p2")).state == "live"
        beating.cancel()

    run(main)


def test_an_outage_in_the_middle_of_a_pass_ends_it_and_is_nobodys_problem() -> None:
    async def main(cluster: Cluster) -> None:
        user, coordinator = await cluster.core(), Pass(await cluster.core(), "p")
        await launch(user)

        async def outage() -> None:
            cluster.cut()

        cluster.ways[1].before["get", "jobs/"] = outage
        with pytest.raises(StoreUnavailable):
            await coordinator.turn()
        cluster.cut(False)
        await coordinator.turn()
        assert (await pass_now(user)).problems == {}

    run(main)


def test_a_holder_that_resigns_is_followed_at_once() -> None:
    async def main(cluster: Cluster) -> None:
        first, second = Pass(await cluster.core(), "p1"), Pass(await cluster.core(), "p2")
        await first.turn()
        assert not await second.turn()
        await first.resign()
        assert await second.turn()

    run(main)


def test_suspects_outlive_the_holder_of_the_pass() -> None:
    """Each holder runs for less than a time-out, and dies; the silent agent is declared dead all the same."""

    async def main(cluster: Cluster) -> None:
        await join(cluster, "silent")
        cores = [await cluster.core() for _ in range(6)]
        ages = []
        for number, core in enumerate(cores):
            holder = Pass(core, f"p{number}")
            await passes(holder, 2 * LOOK)
            await holder.resign()
            ages.append((await pass_now(core)).suspects.get("silent", Suspect(beat=0, age=-1.0)).age)
        assert ages[:2] == [LOOK, 2 * LOOK]
        assert (await agent_now(cores[0], "silent")).state == "dead"

    run(main)


def test_a_dead_holder_is_itself_a_suspect_whose_age_is_credited() -> None:
    async def main(cluster: Cluster) -> None:
        agents = [await join(cluster, name) for name in ("a", "b")]
        first = Pass(agents[0].core, "a", own_beat=lambda: 1)
        second = Pass(agents[1].core, "b")
        beating = asyncio.create_task(agents[1].beat_for_ever())
        await first.turn()
        died = cluster.clock.boottime()
        await passes(second, 2 * DEATH)
        beating.cancel()
        assert (await agent_now(agents[1].core, "a")).state == "dead"
        assert cluster.clock.boottime() - died <= 2 * DEATH + LOOK
        assert (await agent_now(agents[1].core, "b")).state == "live"

    run(main)


def test_several_runs_of_once_declare_a_death_and_one_does_not() -> None:
    async def main(cluster: Cluster) -> None:
        user, dead = await cluster.core(), await join(cluster, "a")
        job = await launch(user)
        await dead.claim()
        runs = 0
        while (await agent_now(user, "a")).state == "live":
            await Pass(await cluster.core(), f"once-{runs}").once()
            await cluster.clock.sleep(60.0)
            runs += 1
        assert 2 <= runs <= 5
        assert (await job_now(user, job.id)).attempt == 2

    run(main)


def test_runs_of_once_beside_the_holder_do_not_count_the_same_silence_twice() -> None:
    """An agent that beats every 20 s is late but never silent for the 25 s that would kill it."""

    async def main(cluster: Cluster) -> None:
        user, slow = await cluster.core(), await join(cluster, "slow")
        tasks = [
            asyncio.create_task(slow.beat_for_ever(every=20.0)),
            asyncio.create_task(passes(Pass(await cluster.core(), "p"), 3600.0, every=9.5)),
            *[asyncio.create_task(_once_after_once(await cluster.core(), n)) for n in range(4)],
        ]
        await cluster.clock.sleep(300.0)
        state = (await agent_now(user, "slow")).state
        for task in tasks:
            task.cancel()
        assert state == "live"

    async def _once_after_once(core: Core, number: int) -> None:
        await core.clock.sleep(number * 2.3)
        while True:
            await Pass(core, f"once-{number}").once()
            await core.clock.sleep(1.0)

    run(main)


def test_two_passes_at_once_do_no_harm() -> None:
    async def main(cluster: Cluster) -> None:
        user = await cluster.core()
        jobs = [await launch(user, name=f"job{n}") for n in range(10)]
        dead = await join(cluster, "dead")
        held = [await dead.claim() for _ in jobs[:5] if await _first_entry_goes(user, dead)]
        assert len(held) == 5
        others = [Pass(await cluster.core(), f"once-{n}") for n in range(3)]
        for _ in range(5):
            await asyncio.gather(*(other.once() for other in others))
        now = [await job_now(user, job.id) for job in jobs]
        assert [(job.status, job.attempt) for job in now] == [("pending", 2)] * 5 + [("pending", 1)] * 5
        assert cluster.keys("pending/") == sorted(entry_of(job).key() for job in now)

    async def _first_entry_goes(user: Core, agent: Hand) -> bool:
        for job_id, holding in agent.holding.items():
            job: Any = await job_now(user, job_id)
            assert holding == Holding(attempt=1, phase="running")
            await user.store.delete(entry_of(job).key())
        return True

    run(main)


def test_a_job_claimed_after_its_agents_last_beat_is_put_back_when_the_agent_dies() -> None:
    """No beat lists it, so no burial sees it; the repair that would is far away."""

    async def main(cluster: Cluster) -> None:
        coordinator = Pass(await cluster.core(), "pass")
        dead = await join(cluster, "dead")
        await coordinator.turn()
        job = await launch(dead.core)
        await dead.claim(listed=False)
        await passes(coordinator, 60.0, every=7.5)
        assert (await agent_now(dead.core, "dead")).state == "dead"
        now = await job_now(dead.core, job.id)
        assert (now.status, now.attempt) == ("pending", 2)

    run(main, Settings(repair_interval=1e6))
