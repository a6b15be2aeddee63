"""A small cluster in virtual time: hosts die and come back, the store goes away, and every job ends once.

The services, the pass and the store are the real ones; what an agent does with them is in `work_for_ever`. All chance
comes from the seed, so that a seed that fails can be run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from typing import Any

import pytest

from fray_coordinator.claims import Claimed, try_claim
from fray_coordinator.coordinate import Pass
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol.schedule import entry_of
from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.names import Pending
from fray_layouts.records import Holding, JobRecord
from tests.support.participants import Hand, job_now, join, launch
from tests.support.virtual import Cluster, run

JOBS, HOSTS, HOUR = 25, 4, 3600.0


async def persist(cluster: Cluster, step: Any) -> Any:
    """Do `step` until the store answers, as an agent does with what must not be left undone."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await step()
        await cluster.clock.sleep(1.0)


async def work_for_ever(cluster: Cluster, agent: Hand, dice: random.Random) -> None:
    """Claim, list, run, commit; the claim is listed before it is made, and until what follows it is known."""
    while True:
        keys = [row.key for row in await persist(cluster, lambda: agent.core.store.list("pending/"))]
        entry = Pending.parse(dice.choice(keys)) if keys else None
        if entry is not None:
            agent.holding[entry.job] = Holding(attempt=entry.attempt)
            result = await persist(cluster, lambda entry=entry: try_claim(agent.core, entry, agent.id, agent.id))
            if isinstance(result, Claimed):
                await cluster.clock.sleep(dice.uniform(1, 90))
                kind = dice.choice(["success"] * 4 + ["exited", "preempted"])
                await persist(cluster, lambda job=result.job, kind=kind: agent.end(job, kind))
            agent.holding.pop(entry.job, None)
        await cluster.clock.sleep(dice.uniform(0.5, 2.0))


async def host(cluster: Cluster, name: str, dice: random.Random) -> None:
    """One machine: an agent after the other, each killed after a while or fenced; then one that lives."""
    for life in itertools.count():
        agent = await persist(cluster, lambda life=life: join(cluster, f"{name}-{life}"))
        parts = [
            asyncio.create_task(persist(cluster, agent.beat_for_ever)),
            asyncio.create_task(work_for_ever(cluster, agent, dice)),
            asyncio.create_task(coordinate_for_ever(cluster, agent)),
        ]
        await asyncio.wait(parts[:1], timeout=dice.uniform(20, 400) if life < 3 else None)
        for part in parts:
            part.cancel()


async def coordinate_for_ever(cluster: Cluster, agent: Hand) -> None:
    coordinator = Pass(agent.core, agent.id)
    while True:
        await persist(cluster, coordinator.turn)
        await cluster.clock.sleep(agent.core.jittered(agent.core.settings.pass_interval))


async def history(cluster: Cluster, dice: random.Random) -> list[JobRecord]:
    """Run until every job has ended, with two outages on the way; the jobs as they ended."""
    user = await cluster.core()
    jobs = [await launch(user, name=f"job{n}", max_retries_failure=50) for n in range(JOBS)]
    hosts = [asyncio.create_task(host(cluster, f"h{n}", random.Random(dice.random()))) for n in range(HOSTS)]
    for _ in range(2):
        await cluster.clock.sleep(dice.uniform(60, 300))
        cluster.cut()
        await cluster.clock.sleep(dice.uniform(10, 200))
        cluster.cut(False)
    while not all([is_terminal(await job_now(user, job.id)) for job in jobs]):
        await cluster.clock.sleep(30.0)
        assert cluster.clock.boottime() < 3 * HOUR, "a job is in nobody's hands"
    await cluster.clock.sleep(600.0)
    for task in hosts:
        task.cancel()
    return [await job_now(user, job.id) for job in jobs]


@pytest.mark.parametrize("seed", range(6))
def test_every_job_ends_well_and_nothing_is_left(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        ended = await history(cluster, random.Random(seed))
        assert {job.status for job in ended} == {"succeeded"}
        assert sum(job.attempt for job in ended) > JOBS, "nothing went wrong: the simulation lost its faults"
        assert cluster.keys("pending/") == []
        for job in ended:
            assert job.failures + job.preemptions + 1 == job.attempt
            assert entry_of(job).attempt == job.attempt

    run(main)


def test_the_same_seed_gives_the_same_history() -> None:
    def once() -> list[JobRecord]:
        return run(lambda cluster: history(cluster, random.Random(7)))

    assert once() == once()
