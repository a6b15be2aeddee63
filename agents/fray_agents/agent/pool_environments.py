"""Builds the environments that the agent's pool names, once, before the agent claims, so that no job waits for them."""

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from fray_agents.agent.membership import Membership
from fray_agents.environments.prepare import Preparer
from fray_coordinator.errors import describe_error
from fray_coordinator.jobs.pools import pool_environments
from fray_coordinator.protocol.environments import environment_shortage
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import JobRecord
from fray_layouts.spec import EntrypointSpec, EnvironmentSpec, JobSpec

log = logging.getLogger("fray")


@dataclass(frozen=True, slots=True)
class PoolEnvironments:
    """Builds the pool's environments for one agent, as for a job that asks for each."""

    member: Membership
    preparer: Preparer
    work_dir: Path

    async def build(self) -> None:
        """Build one after another. A failure is shown in the agent's record, and does not keep it from working."""
        member, pool = self.member, self.member.record.pool
        failures: list[str] = []

        def failed(what: str, error: Exception) -> None:
            failures.append(f"{what}: {describe_error(error)}")
            member.problems.warnings.warn("%s", failures[-1])

        named: list[EnvironmentSpec] = []
        try:
            named = await pool_environments(member.core, pool)
        except Exception as error:  # whatever the record contains: jobs bring their environments themselves
            failed(f"the environments of pool {pool} cannot be read", error)
        for number, environment in enumerate(named, 1):
            what = f"environment {number} of {len(named)} of pool {pool}"
            if shortage := environment_shortage(environment, member.record.software):
                log.info("%s is not built: %s", what, shortage)
                continue
            self._report(f"claims nothing yet: builds the pool's environments, {number} of {len(named)}")
            try:
                await self._build(environment, f"environment-{number}")
                log.info("%s is built", what)
            except Exception as error:  # the agent can still run other jobs
                failed(f"{what} is not built", error)
        if member.problems.environments or failures:
            self._report("; ".join(failures))

    def _report(self, text: str) -> None:
        self.member.problems.environments = text
        self.member.request_beat()

    async def _build(self, environment: EnvironmentSpec, name: str) -> None:
        """Build it as for a job that is never run; the host's cache keeps it."""
        entrypoint, pool = EntrypointSpec(command=["true"]), self.member.record.pool
        spec = JobSpec(name=name, entrypoint=entrypoint, environment=environment, pool=pool)
        job = JobRecord(id=name, spec=spec, status=Status.PENDING)

        def on_activity(activity: str) -> None:
            log.debug("%s of pool %s: %s", name, pool, activity)

        async with AsyncExitStack() as held:
            await self.preparer.prepare(job, self.work_dir / f"~{name}", held, on_activity)
