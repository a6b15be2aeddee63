"""An agent that claims its own jobs again, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib

from fray_agents.agent.claimer import Claimer
from fray_agents.agent.held import HeldLease
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import Resources
from tests.support.members import trusted_member
from tests.support.scripted_agents import join, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


async def test_a_job_requeued_while_its_agent_still_holds_it_is_claimed_as_soon_as_it_is_let_go(
    cluster: Cluster,
) -> None:
    hand = await join(cluster, "agent")
    core = await cluster.core(local=False)
    job = await launch(core, max_retries_failure=1)
    (key,) = cluster.keys("pending/")
    entry = PendingKey.parse(key)
    assert entry is not None
    claimed: list[HeldLease] = []

    async def take(held: HeldLease) -> None:
        claimed.append(held)

    member = trusted_member(core, HOST)
    claimer = Claimer(member, take, lambda: None, print)
    lease = member.leases.add(entry)
    await hand.end(await hand.claim(), kind="exited")  # attempt 2 waits, the bell has rung
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(claimer.run(), 10)  # it hears the bell and lists
    assert not claimed
    member.leases.remove(lease)
    let_go = core.clock.boottime()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(claimer.run(), 20)
    assert [taken.entry.job for taken in claimed] == [job.id]
    assert claimed[0].job is not None
    assert claimed[0].job.record.started_at is not None
    waited, attempt = (
        claimed[0].job.record.started_at - (core.now() - core.clock.boottime() + let_go),
        claimed[0].entry.attempt,
    )
    assert attempt == 2
    assert waited < 1
