"""An exception during an attempt ends the attempt with a reason, or ends its agent; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fray_agents.agent import attempt_runner, claimer, replica_runner
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.tasks import health_check
from fray_agents.tasks.task_handle import TaskHandle, TaskSpec
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import BlobKeys, JobKeys
from fray_layouts.records import JobRecord, Resources
from fray_runtime.current_task import CHILDREN_MARKER, ENDPOINTS_FILE
from tests.support.fake_tasks import FakeTask, fake
from tests.support.scripted_agents import agent_now, job_now, launch
from tests.support.virtual import Cluster, VirtualClock

HOST = Resources(cpu=1000, memory=2**33, disk=2**33)


@dataclass
class Stage:
    """One agent with one core, and a user of the cluster."""

    cluster: Cluster
    user: Core
    agent: Agent
    life: asyncio.Task[object]

    async def ended(self, job: JobRecord) -> JobRecord:
        """The job after its end; the agent must still be there."""
        ended = await wait_for(self.user, [job.id], timeout=4000)
        assert ended[job.id].status in ("succeeded", "failed", "stopped")
        assert not self.life.done(), self.life
        return await job_now(self.user, job.id)

    async def until_running(self, job: JobRecord) -> None:
        for _ in range(60):
            if (await job_now(self.user, job.id)).status == "running":
                return
            await asyncio.sleep(1)
        raise AssertionError("it does not run")


@asynccontextmanager
async def with_an_agent(
    cluster: Cluster, folder: Path, wrap: Callable[[TaskHandle], Any] = lambda task: task, output: bytes = b""
) -> AsyncIterator[Stage]:
    """Run `act` with an agent whose tasks `wrap` has changed."""
    plain = fake(folder, {"quick": 1.0, "slow": 200.0}, output)

    async def start(spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        task: TaskHandle = wrap(await plain(spec, deadline, lock_fd))
        return task

    user = await cluster.core()
    options = AgentOptions(capacity=HOST, work_dir=folder, start_task=start)
    agent = Agent(await cluster.core(), options)
    life = asyncio.create_task(agent.run())
    await asyncio.sleep(5)
    yield Stage(cluster, user, agent, life)
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)


def raising_once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, error: BaseException) -> None:
    """The first call of this coroutine function raises."""
    plain, raised = getattr(where, name), False

    async def wrapped(*args: Any) -> Any:
        nonlocal raised
        if not raised:
            raised = True
            raise error
        return await plain(*args)

    monkeypatch.setattr(where, name, wrapped)


@pytest.mark.parametrize("call", [{"pickle": "abc"}, {"blob": "blobs/x"}, {"blob": BlobKeys.key(0.0, "gone")}])
async def test_a_callable_that_cannot_be_had_is_the_jobs_failure(
    cluster: Cluster, tmp_path: Path, call: dict[str, str]
) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        after = await stage.ended(await launch(stage.user, name="quick", entrypoint={"callable": call}))
        assert (after.status, after.attempt, after.exit and after.exit.kind) == ("failed", 1, "exception")
        assert after.exit is not None
        assert "submit it again" in after.exit.message
        assert (await stage.ended(await launch(stage.user, name="quick"))).status == "succeeded"


@pytest.mark.parametrize("step", ["upload_logs", "end_attempt", "task_environment"])
@pytest.mark.parametrize("error", [MemoryError(), ValueError("odd"), RecursionError("deep")])
async def test_an_unexpected_exception_requeues_the_job_with_the_reason(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        if step == "task_environment":
            raising_once(monkeypatch, replica_runner.ReplicaRunner, "_task_spec", error)
        else:
            raising_once(monkeypatch, attempt_runner if step == "end_attempt" else replica_runner, step, error)
        after = await stage.ended(await launch(stage.user, name="quick"))
        assert (after.status, after.attempt, after.failures, after.preemptions) == ("succeeded", 2, 0, 1)
        assert after.history[0].exit.kind == "host-failed"
        assert type(error).__name__ in after.history[0].exit.message


async def test_a_log_that_cannot_be_shipped_ends_the_task_at_once(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        raising_once(monkeypatch, replica_runner, "upload_logs", OSError("odd"))
        job = await launch(stage.user, name="slow")
        await asyncio.sleep(30)
        assert (await job_now(stage.user, job.id)).history[0].exit.kind == "host-failed"


async def test_the_task_is_gone_before_its_attempt_ends(cluster: Cluster, tmp_path: Path) -> None:
    class Lingering:
        """A task whose logs cannot be read, and that takes a minute to end."""

        def __init__(self, task: TaskHandle) -> None:
            self._task = task
            self.killed = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._task, name)

        async def chunks(self) -> AsyncIterator[tuple[int, Path]]:
            raise ValueError("odd")
            yield 1, Path()

        def kill(self) -> None:
            self.killed = True

        async def wait(self) -> None:
            assert self.killed
            await asyncio.sleep(60)

    async with with_an_agent(cluster, tmp_path, Lingering) as stage:
        job = await launch(stage.user, name="slow")
        await stage.until_running(job)
        await asyncio.sleep(50)
        assert (await job_now(stage.user, job.id)).attempt == 1
        assert job.id in (await agent_now(stage.user, stage.agent.id)).holdings
        await asyncio.sleep(60)
        assert (await job_now(stage.user, job.id)).history[0].exit.kind == "host-failed"


async def test_an_end_that_cannot_be_written_ends_the_agent_which_lists_it_to_the_last(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:

        async def broken(*args: Any) -> None:
            raise MemoryError("again")

        monkeypatch.setattr(attempt_runner, "end_attempt", broken)
        job = await launch(stage.user, name="slow")
        with pytest.raises(MemoryError, match="again"):
            await stage.life
        assert job.id in (await agent_now(stage.user, stage.agent.id)).holdings
        assert (await job_now(stage.user, job.id)).status == "running"


async def test_a_fault_after_the_end_was_written_changes_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        asked, discarded = [], []

        def broken(task: FakeTask, name: str) -> bytes:
            asked.append(name)
            raise OSError("odd")

        async def discard(task: FakeTask) -> None:
            discarded.append(task)

        monkeypatch.setattr(FakeTask, "read_file", broken)
        monkeypatch.setattr(FakeTask, "discard", discard)
        after = [await stage.ended(await launch(stage.user, name="quick")) for _ in range(2)]
        assert [(job.status, job.attempt) for job in after] == [("succeeded", 1)] * 2
        assert (asked, len(discarded)) == (2 * [ENDPOINTS_FILE, CHILDREN_MARKER], 2)


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("port must be 0-65535")])
async def test_a_health_check_that_raises_has_failed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def broken(check: object) -> bytes:
        raise error

    monkeypatch.setattr(health_check, "_status_line", broken)

    async with with_an_agent(cluster, tmp_path) as stage:
        check = {"port": 80, "path": "/", "interval": 1, "grace": 0, "failures": 3}
        after = await stage.ended(await launch(stage.user, name="slow", health_check=check))
        assert after.exit is not None
        assert after.exit.kind == "unhealthy"
        assert type(error).__name__ in after.exit.message


async def test_a_record_that_is_spoilt_is_listed_until_it_can_be_ended_and_takes_no_room(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        job = await launch(stage.user, name="slow")
        await stage.until_running(job)
        sound = (await stage.user.store.get(JobKeys.key(job.id))).data  # type: ignore[union-attr]
        await stage.user.store.put(JobKeys.key(job.id), b"{}", ANY)
        await asyncio.sleep(400)
        assert job.id in (await agent_now(stage.user, stage.agent.id)).holdings
        assert (await stage.ended(await launch(stage.user, name="quick"))).status == "succeeded"
        await stage.user.store.put(JobKeys.key(job.id), sound, ANY)
        after = await stage.ended(job)
        assert (after.status, after.attempt) == ("succeeded", 1)


async def test_a_record_that_is_spoilt_keeps_no_agent_from_leaving(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        job = await launch(stage.user, name="slow")
        await stage.until_running(job)
        await stage.user.store.put(JobKeys.key(job.id), b"{}", ANY)
        await asyncio.sleep(400)
        stage.agent.terminate()
        await asyncio.wait_for(stage.life, 60)


async def test_a_job_that_waits_for_its_callable_can_be_stopped(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        stage.cluster.connections[-1].before["get", "blobs/"] = lambda: asyncio.sleep(10**6)
        call = {"blob": BlobKeys.key(0.0, "slow")}
        job = await launch(stage.user, name="quick", entrypoint={"callable": call})
        await stage.until_running(job)
        await stop(stage.user, job.id, "enough")
        after = await stage.ended(job)
        assert after.status == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("unanswered", [("get", "blobs/"), ("list", "children/")], ids=["callable", "children"])
@pytest.mark.parametrize("how", ["unanswered", "refused"])
async def test_a_job_whose_objects_alone_cannot_be_had_leaves_its_room_to_others(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unanswered: tuple[str, str], how: str
) -> None:
    """The job fails at every try, but nobody concludes that the host can start nothing."""
    async with with_an_agent(cluster, tmp_path) as stage:
        call = {"blob": BlobKeys.key(0.0, "slow")}
        await stage.user.store.put(call["blob"], b"pickled", ANY)
        if unanswered[0] == "list":  # the second attempt asks for children of the first
            raising_once(monkeypatch, replica_runner, "upload_logs", OSError("odd"))
        faults = getattr(stage.cluster.connections[-1], how)
        faults.append(unanswered)
        job = await launch(stage.user, name="quick", entrypoint={"callable": call})
        await asyncio.sleep(10)
        for _ in range(5):
            other = await launch(stage.user, name="quick")
            await asyncio.sleep(300)
            assert (await job_now(stage.user, other.id)).status == "succeeded"
        waits = await job_now(stage.user, job.id)
        assert waits.history[-1].exit.kind == "start-failed"
        assert unanswered[1] in waits.history[-1].exit.message
        assert waits.start_failures > stage.user.settings.start_failure_limit
        assert waits.failures == 0
        faults.clear()
        assert (await stage.ended(job)).status == "succeeded"


async def test_a_start_waits_for_the_end_of_an_outage(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:
        call = {"blob": BlobKeys.key(0.0, "slow")}
        await stage.user.store.put(call["blob"], b"pickled", ANY)
        connection = stage.cluster.connections[-1]

        async def cut() -> None:
            connection.cut = True

        connection.before["get", "blobs/"] = cut
        job = await launch(stage.user, name="quick", entrypoint={"callable": call})
        await asyncio.sleep(400)
        connection.cut = False
        after = await stage.ended(job)
        assert after.start_failures == 0


class Unkillable:
    """A task that no signal ends."""

    def __init__(self, task: TaskHandle) -> None:
        self._task = task
        self.unkilled: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def stop(self, grace: float, why: str) -> None:
        self.unkilled = [4711]

    def kill(self) -> None:
        self.unkilled = [4711]

    async def wait(self) -> None:
        await self.exit


async def test_a_task_that_cannot_be_killed_stays_listed_and_is_told_of(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path, Unkillable) as stage:
        job = await launch(stage.user, name="slow")
        await stage.until_running(job)
        await stop(stage.user, job.id, "enough")
        await asyncio.sleep(150)
        record = await agent_now(stage.user, stage.agent.id)
        assert job.id in record.holdings
        assert record.problem == f"SIGKILL does not end processes [4711] of {job.id}"
        after = await stage.ended(job)
        assert after.status in ("stopped", "succeeded")
        await asyncio.sleep(100)
        assert (await agent_now(stage.user, stage.agent.id)).problem == ""


async def test_an_agent_ends_at_a_second_signal_though_tasks_cannot_be_killed(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path, Unkillable) as stage:
        job = await launch(stage.user, name="slow")
        await stage.until_running(job)
        for _ in range(2):
            stage.agent.terminate()
        await asyncio.wait_for(stage.life, 30)
        assert (await job_now(stage.user, job.id)).status == "running"


async def test_a_stop_does_not_wait_for_logs_that_the_store_refuses(cluster: Cluster, tmp_path: Path) -> None:
    async with with_an_agent(cluster, tmp_path, output=b"lines") as stage:
        stage.cluster.connections[-1].refused.append(("put", "work/"))
        job = await launch(stage.user, name="quick")
        await stage.until_running(job)
        await asyncio.sleep(300)
        assert (await job_now(stage.user, job.id)).status == "running"
        await stop(stage.user, job.id, "enough")
        await asyncio.sleep(60)
        after = await job_now(stage.user, job.id)
        assert (after.status, after.exit and after.exit.log_chunks) == ("succeeded", 0)


async def test_a_task_that_starts_while_its_agent_ends_is_killed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late:
        killed = gone_for = False

        def kill(self) -> None:
            self.killed = True

        async def wait(self) -> None:
            self.gone_for = True

    late = Late()

    async def start(*args: object) -> Late:
        try:
            await asyncio.sleep(10**6)
        except asyncio.CancelledError:
            return late
        raise AssertionError("it waits for the end")

    async with with_an_agent(cluster, tmp_path) as stage:
        monkeypatch.setattr(replica_runner.ReplicaRunner, "_start", start)
        await stage.until_running(await launch(stage.user, name="quick"))
        stage.life.cancel()
        await asyncio.gather(stage.life, return_exceptions=True)
        assert (late.killed, late.gone_for) == (True, True)


async def test_a_claimed_job_that_nothing_carries_ends_the_agent(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_an_agent(cluster, tmp_path) as stage:

        def broken(work: Coroutine[Any, Any, None]) -> None:
            work.close()
            raise MemoryError("no task can be made")

        monkeypatch.setattr(stage.agent, "_spawn", broken)
        await launch(stage.user, name="quick")
        with pytest.raises(MemoryError, match="no task can be made"):
            await asyncio.wait_for(stage.life, 600)


async def test_a_claim_in_doubt_stays_listed_if_its_repetition_raises_any_error(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim was applied, and its reply was lost. An agent that stopped listing it would hold the job for ever."""
    claimers: list[asyncio.Task[Any] | None] = []
    plain_claim, plain_sleep = claimer.try_claim, VirtualClock.sleep

    async def reply_is_lost(*args: Any) -> Any:
        answer = await plain_claim(*args)
        if claimers:
            return answer
        claimers.append(asyncio.current_task())
        raise StoreUnavailable("the reply is lost")

    async def sleep(self: VirtualClock, seconds: float) -> None:
        if asyncio.current_task() in claimers:
            claimers.append(claimers.pop() and None)
            raise MemoryError
        await plain_sleep(self, seconds)

    monkeypatch.setattr(claimer, "try_claim", reply_is_lost)
    monkeypatch.setattr(VirtualClock, "sleep", sleep)

    async with with_an_agent(cluster, tmp_path) as stage:
        job = await launch(stage.user, name="slow")
        await stage.until_running(job)
        await asyncio.sleep(20)
        assert list((await agent_now(stage.user, stage.agent.id)).holdings) == [job.id]
        assert (await stage.ended(job)).attempt == 1
