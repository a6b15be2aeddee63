"""Builds the environments that the agent's pool names, once, before the agent claims: no job waits for them then."""

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from fray_agents.agent.membership import Membership
from fray_agents.environments.prepare import Preparer
from fray_coordinator.errors import describe_error
from fray_coordinator.jobs.pool_environments import pool_environments
from fray_coordinator.protocol.pool_environments import environment_shortage
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import JobRecord
from fray_layouts.spec import EntrypointSpec, EnvironmentSpec, JobSpec

log = logging.getLogger("fray")


@dataclass(frozen=True, slots=True)
class PoolEnvironments:
    """Builds them for one agent, as it would for a job that asks for each."""

    member: Membership
    preparer: Preparer
    work_dir: Path

    async def build(self) -> None:
        """Build one after another. What fails is told in the agent's record, and keeps it from nothing."""
        member, pool = self.member, self.member.record.pool
        failures: list[str] = []

        def failed(what: str, error: Exception) -> None:
            failures.append(f"{what}: {describe_error(error)}")
            member.problems.warnings.warn("%s", failures[-1])

        named: list[EnvironmentSpec] = []
        try:
            named = await pool_environments(member.core, pool)
        except Exception as error:  # whatever lies there: jobs bring their environments themselves
            failed(f"what environments pool {pool} names cannot be read", error)
        for number, environment in enumerate(named, 1):
            what = f"environment {number} of {len(named)} of pool {pool}"
            if shortage := environment_shortage(environment, member.record.software):
                log.info("%s is not built: %s", what, shortage)
                continue
            self._tell(f"claims nothing yet: builds the pool's environments, {number} of {len(named)}")
            try:
                await self._build(environment, f"environment-{number}")
                log.info("%s is built", what)
            except Exception as error:  # whatever it is, the agent can run other jobs
                failed(f"{what} is not built", error)
        if member.problems.environments or failures:
            self._tell("; ".join(failures))

    def _tell(self, text: str) -> None:
        self.member.problems.environments = text
        self.member.request_beat()

    async def _build(self, environment: EnvironmentSpec, name: str) -> None:
        """Build it as for a job, which is never run; the host's cache keeps it."""
        entrypoint, pool = EntrypointSpec(command=["true"]), self.member.record.pool
        spec = JobSpec(name=name, entrypoint=entrypoint, environment=environment, pool=pool)
        job = JobRecord(id=name, spec=spec, status=Status.PENDING)

        def tell(activity: str) -> None:
            log.debug("%s of pool %s: %s", name, pool, activity)

        async with AsyncExitStack() as held:
            await self.preparer.prepare(job, self.work_dir / f"~{name}", held, tell)
