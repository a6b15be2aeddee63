"""Stopping jobs on request, and stopping jobs that wait too long."""

from __future__ import annotations

from typing import Any

import pytest

from fray_coordinator.errors import JobNotFound
from fray_coordinator.jobs import stopping
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import AgentKeys
from tests.support.scripted_agents import agent_now, job_now, join, launch, passes
from tests.support.virtual import Cluster

SPEC: dict[str, Any] = {"name": "job", "entrypoint": {"command": ["true"]}}


async def test_a_pending_job_is_stopped_at_once_and_leaves_the_index(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user)
    stopped = await stopping.stop(user, job.id, "changed my mind")
    assert stopped.exit is not None
    assert (stopped.status, stopped.exit.message) == ("stopped", "changed my mind")
    assert cluster.keys("pending/") == []
    assert await stopping.stop(user, job.id, "again") == stopped


async def test_a_running_job_gets_the_flag_and_its_agent_mail(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, max_retries_failure=5)
    held = await agent.claim()
    flagged = await stopping.stop(user, job.id, "enough")
    assert flagged.stop is not None
    assert (flagged.status, flagged.stop.reason) == ("running", "enough")
    assert (await agent_now(user, "a")).mail
    await agent.beat()
    assert not (await agent_now(user, "a")).mail
    ended = await agent.end(held, "signalled", complete_before_stop=False)
    assert ended is not None
    assert (ended.status, ended.attempt) == ("stopped", 1)


async def test_a_running_job_is_stopped_although_its_agents_record_is_none(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    await agent.claim()
    await user.store.put(AgentKeys.key("a"), b"garbage", ANY)
    assert (await stopping.stop(user, job.id, "enough")).stop is not None


@pytest.mark.parametrize(("complete", "status"), [(True, "succeeded"), (False, "stopped")])
async def test_a_result_counts_if_it_was_complete_before_sigterm(cluster: Cluster, complete: bool, status: str) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user)
    held = await agent.claim()
    await stopping.stop(user, job.id, "enough")
    ended = await agent.end(held, "success", complete_before_stop=complete)
    assert ended is not None
    assert ended.status == status


async def test_stopping_a_missing_job_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(JobNotFound, match="job-nothing"):
        await stopping.stop(await cluster.core(), "job-nothing", "")


async def test_a_job_that_waits_too_long_is_stopped_and_says_why(cluster: Cluster) -> None:
    user = await cluster.core()
    job = await launch(user, pending_timeout=100.0)
    coordinator = Reconciler(user, "p")
    await passes(coordinator, 90)
    assert (await job_now(user, job.id)).status == "pending"
    await passes(coordinator, 80)
    stopped = await job_now(user, job.id)
    assert stopped.stop is not None
    assert (stopped.status, stopped.stop.by) == ("stopped", "expired")
    assert cluster.keys("pending/") == []


async def test_the_time_that_an_earlier_attempt_ran_is_not_time_spent_pending(cluster: Cluster) -> None:
    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, pending_timeout=100.0)
    held = await agent.claim()
    await cluster.clock.sleep(1000.0)
    await agent.end(held, "preempted")
    await Reconciler(user, "p").try_pass()
    assert (await job_now(user, job.id)).status == "pending"
    await cluster.clock.sleep(50.0)
    assert (await agent.claim()).record.attempt == 2


async def test_a_job_claimed_in_its_last_moment_is_not_stopped_for_waiting(cluster: Cluster) -> None:
    """The repair reads the job while it waits; an agent claims it in time; then the repair looks at the clock."""

    user, agent = await cluster.core(), await join(cluster, "a")
    job = await launch(user, pending_timeout=10.0)
    coordinator = Reconciler(await cluster.core(), "p")

    async def in_time() -> None:
        await agent.claim()
        await cluster.clock.sleep(20.0)

    cluster.connections[-1].before["list", "pending/"] = in_time
    await coordinator.detector.observe_agents({})
    await coordinator.repair.run(coordinator.detector.live())
    kept = await job_now(user, job.id)
    assert (kept.status, kept.stop) == ("running", None)
