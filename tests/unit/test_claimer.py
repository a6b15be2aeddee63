"""How an agent's search for work copes with an outdated index."""

from __future__ import annotations

import asyncio
import sys

from fray_agents.agent.claimer import Claimer
from fray_agents.agent.held import HeldLease
from fray_agents.agent.index_search import STALE_LIMIT
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.submission import submit
from fray_layouts.records import JobRecord, Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.members import trusted_member
from tests.support.virtual import Cluster
from tests.support.waiting import eventually

CAPACITY = Resources(cpu=1000, memory=2**33, disk=2**33)


async def submitted(core: Core) -> JobRecord:
    spec = parse_spec({"name": "job", "entrypoint": {"command": [sys.executable, "-c", "pass"]}})
    return (await submit(core, [spec]))[0].job


async def first_claim(core: Core, fleet: int = 1) -> HeldLease:
    """The first claim of a claimer that sees the root for the first time."""
    found: asyncio.Future[HeldLease] = asyncio.get_running_loop().create_future()

    async def take(held: HeldLease) -> None:
        found.set_result(held)
        member.leaving = True

    member = trusted_member(core, CAPACITY, live_agents=fleet, pool_slots=8)
    search = asyncio.create_task(Claimer(member, take, lambda: None, print).run())
    try:
        return await asyncio.wait_for(found, 60)
    finally:
        search.cancel()


async def has_listed(core: Core) -> bool:
    return core.store.usage.lists > 0


async def test_entries_of_jobs_that_have_ended_are_looked_at_once_and_hide_nothing() -> None:
    core = await open_core("memory://claimer-stale")
    for _ in range(12):
        job = await submitted(core)
        await stop(core, job.id, "not wanted")
        await pending_index.create_entry(core, job)
    before = core.store.usage.snapshot()
    search = asyncio.create_task(first_claim(core))
    await eventually(lambda: has_listed(core))
    wanted = await submitted(core)
    held = await search
    assert held.entry.job == wanted.id
    assert (core.store.usage - before).lists <= 2


async def test_in_a_large_fleet_an_agent_with_only_stale_entries_rests_until_the_bell_rings(cluster: Cluster) -> None:
    core = await cluster.core(local=False)
    for _ in range(40):
        job = await submitted(core)
        await stop(core, job.id, "not wanted")
        await pending_index.create_entry(core, job)
    cluster.connections[0].asked.clear()
    search = asyncio.create_task(first_claim(core, fleet=10_000))
    await asyncio.sleep(30)
    tried = {key for verb, key in cluster.connections[0].asked if verb == "get" and key.startswith("jobs/")}
    assert len(tried) == 2 * STALE_LIMIT, "the others are asked for when all have rested"
    wanted = await submitted(core)
    assert (await search).entry.job == wanted.id
    assert asyncio.get_running_loop().time() < 60, "it would have rested for four minutes"


async def test_an_entry_whose_record_is_still_on_its_way_is_tried_again() -> None:
    core, writer = await open_core("memory://claimer-early"), await open_core("memory://claimer-draft")
    job = await submitted(writer)
    await pending_index.create_entry(core, job)
    search = asyncio.create_task(first_claim(core))
    await eventually(lambda: has_listed(core))
    await core.records.write(f"jobs/{job.id}.json", JobRecord, job, None)
    claimed, wanted = (await search).entry.job, job.id
    assert claimed == wanted
