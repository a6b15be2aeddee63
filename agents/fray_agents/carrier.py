"""Carrying one job's attempt from its claim to its end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fray_agents import health
from fray_agents.environment import CHILDREN_MARK, noted_endpoints, task_environment, wanted
from fray_agents.ledger import Held
from fray_agents.reach import Reach
from fray_agents.shipping import persist, ship_logs, ship_result
from fray_agents.taskhandle import StartTask
from fray_agents.tasks import StartFailed, TaskExit, TaskSpec
from fray_coordinator import families
from fray_coordinator.core import Core
from fray_coordinator.endings import end_attempt
from fray_coordinator.endpoints import withdraw_all
from fray_coordinator.protocol.claim import holds
from fray_coordinator.protocol.finish import Ending
from fray_coordinator.records import Stored
from fray_layouts.records import Exit, JobRecord


class BlobMissing(Exception):
    """The object that holds the job's callable is gone."""


@dataclass(slots=True)
class Carrier:
    """How this agent runs tasks.

    Attributes:
        start_task: starts a task's processes.
        deadline: boot time until which tasks may run unless the deadline is renewed.
        started: told after each start whether it worked.
        trusts: whether this agent's leases may be relied on now.
        may_restart: whether this agent is the one to start a failed actor again.
        reach: where its servers listen and are reached.
        cwd: where tasks start; None: a fresh directory each.
    """

    core: Core
    agent: str
    work_dir: Path
    lock_fd: int | None
    start_task: StartTask
    deadline: Callable[[JobRecord], float]
    started: Callable[[bool], None]
    trusts: Callable[[], bool]
    may_restart: Callable[[], bool]
    reach: Reach
    cwd: str | None = None

    async def carry(self, held: Held) -> None:
        """Run the attempt, and those by which the job is restarted here, until nothing is left to do about it."""
        while (job := await self._carry_attempt(held)) is not None:
            held.restart(job)
            await self.core.clock.sleep(max(0.0, job.record.not_before - self.core.now()))

    async def _carry_attempt(self, held: Held) -> Stored[JobRecord] | None:
        """Run one attempt and write how it ended; the record, if the job is to be started here again."""
        assert held.job is not None, "a carried job was claimed"
        held.directory = self.work_dir / f"{held.entry.job}~{held.attempt}"
        if held.attempt > 1:
            await persist(self.core, lambda: families.end_children(self.core, held.entry.job))
        ending = await self._run(held, held.job)
        held.phase = "ending"
        after = await self._end(held, held.job, ending)
        if held.task is not None:
            await held.task.discard()
        return after if after is not None and holds(after.record, held.attempt + 1, self.agent) else None

    async def _run(self, held: Held, job: Stored[JobRecord]) -> Ending:
        if held.stop is not None:
            return _not_started(held.stop[1])
        try:
            spec = await self._task_spec(held, job.record)
            if not self.trusts():  # frozen since the claim, perhaps: the job may be someone else's
                return _not_started("preempted")
            held.task = await self.start_task(spec, self.deadline(job.record), self.lock_fd)
        except (StartFailed, OSError) as error:
            self.started(False)
            return Ending(Exit(kind="start-failed", message=f"the host could not start the task: {error}"))
        except BlobMissing as error:
            return Ending(Exit(kind="exception", message=str(error)))
        self.started(True)
        if held.stop is not None:
            held.task.stop(*held.stop)
        try:
            return await self._see_through(held, job.record)
        except OSError as error:
            held.task.kill()
            await held.task.gone()
            return Ending(Exit(kind="host-failed", message=f"the host failed while the task ran: {error}"))

    async def _see_through(self, held: Held, job: JobRecord) -> Ending:
        task = held.task
        assert task is not None, "it was just started"
        logs = asyncio.create_task(ship_logs(self.core, job, task))
        watch = asyncio.create_task(self._watch_health(held, job)) if job.spec.health_check else None
        try:
            end = await asyncio.shield(task.exit)  # its owner sets it, also after this was cancelled
            await task.gone()
            shipped = await logs
            held.published = noted_endpoints(held.directory) if held.directory else []
            end.exit.log_chunks = shipped
            return await self._ending(held, job, end)
        finally:
            logs.cancel()
            if watch is not None:
                watch.cancel()

    async def _ending(self, held: Held, job: JobRecord, end: TaskExit) -> Ending:
        if held.unhealthy:
            end.exit.message = held.unhealthy
        if end.exit.kind == "lost":  # something killed its runner; a frozen agent that wakes may trust itself again
            end.exit.kind = "signalled" if self.trusts() else "preempted"
        if end.exit.kind != "success" or end.result is None:
            return Ending(end.exit, None, end.complete_before_stop)
        return Ending(end.exit, await ship_result(self.core, job, end.result), end.complete_before_stop)

    async def _watch_health(self, held: Held, job: JobRecord) -> None:
        check = job.spec.health_check
        assert check is not None, "only jobs with a check are watched"

        def fail(why: str) -> None:
            held.unhealthy = why
            held.ask_to_stop(job.spec.grace, "unhealthy")

        await health.watch(check, self.core.clock, fail)

    async def _task_spec(self, held: Held, job: JobRecord) -> TaskSpec:
        directory = held.directory
        assert directory is not None, "set by carry"
        call = job.spec.entrypoint.callable
        pickle = None
        if call is not None:
            pickle = base64.b64decode(call.pickle) if call.pickle else await self._blob(call.blob)
        return TaskSpec(
            directory=directory,
            command=job.spec.entrypoint.command or None,
            callable_pickle=pickle,
            env=task_environment(job, self.core.root, self.agent, directory, self.reach),
            variables=wanted(job),
            timeout=job.spec.timeout,
            grace=job.spec.grace,
            cwd=self.cwd,
        )

    async def _blob(self, key: str) -> bytes:
        found = await persist(self.core, lambda: self.core.store.get(key))
        if found is None:
            raise BlobMissing(f"the job's callable is gone: there is no object {key}; submit it again")
        return found.data

    async def _end(self, held: Held, job: Stored[JobRecord], ending: Ending) -> Stored[JobRecord] | None:
        """Write the end and take away what the attempt leaves behind for others to see; the record as it is then."""

        async def end() -> Stored[JobRecord] | None:
            decided = replace(ending, restart=self._restarts(held, job.record))
            return await end_attempt(self.core, job, self.agent, decided, held.entry_in_index)

        after = await persist(self.core, end)
        if held.published:
            await persist(self.core, lambda: withdraw_all(self.core, held.published, job.record))
        if held.directory is not None and (held.directory / CHILDREN_MARK).exists():
            await persist(self.core, lambda: families.end_children(self.core, held.entry.job))
        return after

    def _restarts(self, held: Held, job: JobRecord) -> bool:
        """Whether a failure is followed by another attempt here, and not by one wherever there is room."""
        wanted = held.stop is None or held.stop[1] == "unhealthy"
        return job.spec.actor and wanted and self.may_restart()


def _not_started(why: str) -> Ending:
    kind = "preempted" if why == "preempted" else "stopped"
    return Ending(Exit(kind=kind, message=f"{why} before it was started", log_chunks=0), None, False)
