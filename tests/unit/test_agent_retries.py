"""An agent that claims its own jobs again, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from fray_agents.agent.attempt_runner import AttemptRunner
from fray_agents.agent.claimer import Claimer
from fray_agents.agent.held import HeldLease, HeldTask
from fray_agents.agent.replica_runner import ReplicaRunner
from fray_coordinator.jobs.claiming import Claimed, try_claim
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.scheduling import entry_of
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AttemptExit, JobRecord, Resources
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


class EndedTask:
    """In place of a `ReplicaRunner`: a task that ends well at once."""

    async def run(self, held: HeldTask, job: JobRecord) -> AttemptEnd:
        return AttemptEnd(AttemptExit(kind="success"))

    async def clean_up(self, held: HeldTask, job: JobRecord) -> None: ...

    async def let_go(self, held: HeldTask, job: JobRecord) -> None: ...


async def test_a_job_whose_task_has_ended_is_listed_as_ending_while_its_end_is_written(cluster: Cluster) -> None:
    core = await cluster.core()
    job = await launch(core)
    member = trusted_member(core, HOST)
    phases: list[str] = []
    claimed = await try_claim(core, entry_of(job), member.id, "host")
    assert isinstance(claimed, Claimed)
    lease = member.leases.add(entry_of(job))
    lease.job, lease.phase = claimed.job, "running"

    async def note() -> None:
        phases.append(member.leases.holdings()[job.id].phase)

    cluster.connections[0].before["put", JobKeys.key(job.id)] = note
    await AttemptRunner(member, cast(ReplicaRunner, EndedTask())).run(lease)
    assert phases == ["ending"]
