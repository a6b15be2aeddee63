"""An agent finds an entry that fits behind any number of others; and the requests that this costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fray_agents.agent.claimer import REMOTE_POLL_BACKOFF, Claimer
from fray_agents.agent.held import HeldLease
from fray_agents.agent.index_search import (
    ENTRIES_PER_INTERVAL,
    FULL_POLLS,
    PAGES_PER_POLL,
    PAGES_PER_SECOND,
    STALE_LIMIT,
)
from fray_agents.agent.leases import Leases
from fray_coordinator.core import Core
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.submission import submit
from fray_coordinator.store.interface import ROWS_PER_REQUEST, Object
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.members import trusted_member
from tests.support.virtual import EPOCH, Cluster

GIB = 2**30
HOST = Resources(cpu=4000, memory=8 * GIB, disk=8 * GIB)
GPU = Shape(1000, 0, 0, "gpu", 8, False)
SMALL = Shape(1000, 0, 0, "", 0, False)
WIDE = Shape(4000, 0, 0, "", 0, False)
LIST = ("list", PendingKey.prefix("default"))
LONGEST_PAUSE = REMOTE_POLL_BACKOFF[2] * 1.2
"""Of an idle agent between two looks, with its jitter."""


@dataclass
class Searching:
    """A claimer at work on a host with four cores. It holds its claims until the test releases them."""

    core: Core
    asked: list[tuple[str, str]]
    leases: Leases
    claimed: asyncio.Queue[HeldLease] = field(default_factory=asyncio.Queue)

    def lists(self) -> int:
        return self.asked.count(LIST)

    async def claims(self, job: str, within: float) -> HeldLease:
        held = await asyncio.wait_for(self.claimed.get(), within)
        assert held.entry.job == job
        return held


@asynccontextmanager
async def searching(cluster: Cluster, fleet: int = 1, slots: int = 4) -> AsyncIterator[Searching]:
    core = await cluster.core(local=False)
    member = trusted_member(core, HOST, live_agents=fleet, pool_slots=slots)
    at_work = Searching(core, cluster.connections[-1].asked, member.leases)
    task = asyncio.create_task(Claimer(member, at_work.claimed.put, lambda: None, print).run())
    try:
        yield at_work
    finally:
        task.cancel()


def unfit(cluster: Cluster, count: int, shape: Shape = GPU, priority: int = 0) -> None:
    """Entries from before the run began."""
    for number in range(count):
        entry = PendingKey("default", priority, EPOCH - 100.0 + number / 1000, f"unfit-{number}", 1, shape)
        cluster.contents.set(entry.key(), Object(b"", "1", EPOCH))


async def ring(core: Core) -> None:
    while True:
        await notifications.ring(core, "default")
        await asyncio.sleep(0.5)


async def submitted(core: Core, **fields: object) -> str:
    spec = parse_spec({"name": "job", "entrypoint": {"command": ["true"]}, **fields})
    return (await submit(core, [spec]))[0].job.id


async def test_twelve_thousand_entries_that_can_never_run_here_cost_a_list_for_each_thousand(cluster: Cluster) -> None:
    unfit(cluster, 12_500)
    wanted = await submitted(await cluster.core())
    async with searching(cluster) as agent:
        looks = -(-13 // PAGES_PER_POLL)
        await agent.claims(wanted, within=looks * LONGEST_PAUSE)
        assert agent.lists() == 13


async def test_an_entry_that_comes_behind_them_later_costs_two_lists(cluster: Cluster) -> None:
    unfit(cluster, 12_500)
    client = await cluster.core()
    async with searching(cluster) as agent:
        await asyncio.sleep(30)
        before = agent.lists()
        assert before == 13, "it has been at the end, and rests"
        wanted = await submitted(client)
        await agent.claims(wanted, within=LONGEST_PAUSE)
        assert agent.lists() - before == 2


async def test_in_an_hour_without_news_an_agent_lists_less_than_its_searches_may(cluster: Cluster) -> None:
    """A sweep of 13 pages lasts 7.25 repair intervals; otherwise head and end are listed in each interval."""

    unfit(cluster, 12_500)
    async with searching(cluster) as agent:
        await asyncio.sleep(30)
        before = agent.lists()
        await asyncio.sleep(3600)
        repairs = 3600 / agent.core.settings.repair_interval
        sweeps = repairs / (1 + 12_500 / ENTRIES_PER_INTERVAL)
        assert agent.lists() - before <= 2 * repairs + (sweeps + 1) * 11
        assert agent.lists() - before < PAGES_PER_POLL * repairs


async def test_a_large_fleet_lists_no_faster_than_the_bucket_is_to_be_asked(cluster: Cluster) -> None:
    unfit(cluster, 12_500)
    wanted, fleet = await submitted(await cluster.core()), 10_000
    async with searching(cluster, fleet=fleet) as agent:
        begun = asyncio.get_running_loop().time()
        await agent.claims(wanted, within=1800)
        took = asyncio.get_running_loop().time() - begun
        assert took >= 3 * PAGES_PER_POLL * fleet / PAGES_PER_SECOND
        assert agent.lists() == 4 + 12, "a head for each repair interval, which is as long there"


async def test_an_entry_among_those_already_passed_is_found_in_the_next_sweep(cluster: Cluster) -> None:
    unfit(cluster, 5000, priority=1)
    unfit(cluster, 5000)
    client = await cluster.core()
    async with searching(cluster) as agent:
        await asyncio.sleep(30)
        wanted = await submitted(client, priority=1)
        interval = 1.2 * agent.core.settings.repair_interval
        await agent.claims(wanted, within=interval * (2 + 10_000 / ENTRIES_PER_INTERVAL) + 4 * LONGEST_PAUSE)


async def test_an_urgent_job_need_not_wait_for_the_walk(cluster: Cluster) -> None:
    unfit(cluster, 60_000)
    client = await cluster.core()
    async with searching(cluster) as agent:
        await asyncio.sleep(10)
        wanted = await submitted(client, priority=9)
        await agent.claims(wanted, within=LONGEST_PAUSE)


async def test_entries_that_would_fit_an_emptier_host_hold_up_nothing_and_come_first_later(cluster: Cluster) -> None:
    client = await cluster.core()
    first = await submitted(client)
    async with searching(cluster) as agent:
        small = await agent.claims(first, within=LONGEST_PAUSE)
        wide = await submitted(client, resources={"cpu": 4}, priority=1)
        unfit(cluster, 12_500, shape=WIDE)
        before, wanted = agent.lists(), await submitted(client)
        repairs = 12_500 / ROWS_PER_REQUEST / (PAGES_PER_POLL - 1)
        behind = await agent.claims(wanted, within=(repairs + 1) * 1.2 * agent.core.settings.repair_interval)
        assert agent.lists() - before <= 13 + repairs + 1, "each look on the repair interval lists the head too"
        for held in (small, behind):
            agent.leases.remove(held)
        await agent.claims(wide, within=LONGEST_PAUSE)


async def test_a_job_without_cores_is_claimed_by_a_host_whose_cores_are_all_taken(cluster: Cluster) -> None:
    unfit(cluster, 3 * ROWS_PER_REQUEST, WIDE)
    async with searching(cluster) as at_work:
        wide = await submitted(at_work.core, resources={"cpu": 4}, priority=1)
        await at_work.claims(wide, 60)
        actor = await submitted(at_work.core, resources={"cpu": 0}, parent=wide)
        await at_work.claims(actor, FULL_POLLS * at_work.core.settings.poll_interval + LONGEST_PAUSE)


async def test_a_full_host_answers_a_bell_that_never_rests_more_rarely(cluster: Cluster) -> None:
    async with searching(cluster) as at_work:
        await at_work.claims(await submitted(at_work.core, resources={"cpu": 4}), 60)
        ringing = asyncio.create_task(ring(at_work.core))
        before = at_work.lists()
        await asyncio.sleep(600)
        ringing.cancel()
        assert at_work.lists() - before <= 600 / (FULL_POLLS * at_work.core.settings.poll_interval) + 1


async def test_a_bell_that_never_rests_does_not_keep_the_walk_at_the_head(cluster: Cluster) -> None:
    unfit(cluster, 12_500)
    client = await cluster.core()
    wanted = await submitted(client)

    ringing = asyncio.create_task(ring(client))
    async with searching(cluster) as agent:
        await agent.claims(wanted, within=4 * LONGEST_PAUSE)
        assert agent.lists() == 4 + 12, "a head for each of four looks"
    ringing.cancel()


async def test_entries_without_jobs_that_would_fit_cost_a_few_tries_a_page(cluster: Cluster) -> None:
    """A participant has left them there, and nobody removes them before the quarantine ends."""

    unfit(cluster, 5500, shape=SMALL)
    wanted = await submitted(await cluster.core())
    async with searching(cluster) as agent:
        await agent.claims(wanted, within=7 * LONGEST_PAUSE)
        tries = sum(verb == "get" and key.startswith("jobs/") for verb, key in agent.asked)
        assert tries <= 7 * 2 * STALE_LIMIT
        assert agent.lists() <= 7 + 1


async def test_entries_without_jobs_at_the_head_do_not_hide_the_others_while_the_bell_rings(cluster: Cluster) -> None:
    unfit(cluster, 5500, shape=SMALL)
    client = await cluster.core()
    wanted = await submitted(client)
    async with searching(cluster) as agent:
        ringing = asyncio.create_task(ring(client))
        await agent.claims(wanted, within=8 * LONGEST_PAUSE)
        ringing.cancel()


async def test_an_entry_before_the_random_starting_place_is_found_too(cluster: Cluster) -> None:
    unfit(cluster, 5500)
    wanted = await submitted(await cluster.core(), priority=1)
    unfit(cluster, 5500, priority=2)
    async with searching(cluster, slots=20_000) as agent:
        await agent.claims(wanted, within=4 * LONGEST_PAUSE)
