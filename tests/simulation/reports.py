"""Reports of hosts and users, and invariants that are checked at once."""

from __future__ import annotations

import random

from fray_agents.agent.agent import Agent
from fray_coordinator.errors import StoreRefused, StoreUnavailable
from fray_coordinator.protocol.transitions import TERMINAL
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from tests.simulation import gang_invariants, invariants, upkeep_invariants
from tests.simulation.effects import Run
from tests.simulation.host import Host
from tests.simulation.invariants import Broken
from tests.simulation.loop import Participant
from tests.simulation.membership import Membership
from tests.simulation.mishaps import is_mishap
from tests.simulation.scenario import People
from tests.simulation.strangers import Strangers


class Reports(Membership):
    """A world that gets reports about agents, tasks and submissions.

    Attributes:
        known_jobs: jobs whose submission was acknowledged.
    """

    people: People
    strangers: Strangers

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.known_jobs: list[str] = []
        self._hang_ups = random.Random(f"hang ups {seed}")

    def crashed(self, agent: Agent) -> None:
        """Check after the end of an agent's process that all jobs that only it knew can be found in another way."""
        for job in list(agent.member.leases.held):
            invariants.reachable(self.watching, job, f"{agent.id} crashed")

    def agent_failed(self, host: Host, error: BaseException) -> None:
        """Check that only a mishap has ended an agent's process."""
        if is_mishap(error):
            return
        name = "no object ends an agent"
        if isinstance(error, StoreUnavailable):
            name = "no outage kills an agent"
        elif isinstance(error, StoreRefused):
            name = "no refusal ends an agent"
        broken = Broken(name, f"the agent process on {host.name} ended with {error!r:.500}", host.name)
        broken.__cause__ = error
        self.is_broken(broken)

    def task_began(self, run: Run) -> None:
        self.note(run.host, f"task {run.told_as}", f"starts under {run.agent}")
        others = [other for other in self.effects.running.get(run.job, ()) if other.attempt != run.attempt]
        self.effects.begin(run)
        if run.job in self.strangers.harmed or self.strangers.is_stranger(JobKeys.key(run.job)):
            self.effects.twice.clear()
            return
        try:
            if self.effects.twice:
                invariants.an_attempt_runs_once(run)
            if run.replicas == 1:
                invariants.one_copy_at_a_time(self.watching, run, others)
                upkeep_invariants.a_job_runs_where_it_may(self.watching, run)
            else:
                gang_invariants.attempts_never_overlap(self.watching, run, others)
        except Broken as broken:
            self.is_broken(broken)

    def task_ended(self, run: Run, how: str, complete: bool) -> None:
        self.effects.end(run, self.loop.now, how, complete)
        self.note(run.host, f"task {run.told_as}", f"ends: {how}")
        if run.job in self.strangers.harmed:
            return
        try:
            invariants.the_outage_grace_ends(self.watching, run)
            upkeep_invariants.an_attempt_ends_by_its_time_limit(self.watching, run)
        except Broken as broken:
            self.is_broken(broken)

    def submitted(self, job: JobRecord, found: bool) -> None:
        """Note an acknowledged submission. found: whether it found an earlier one."""
        if job.id in self.strangers.harmed or self.storage.went_with_another_root(JobKeys.key(job.id)):
            return
        if found and not job.spec.id:
            self.is_broken(Broken("a new job is not an old one", f"{job.id} was found by its submitter", job.id))
        if job.id not in self.watching.jobs and f"jobs/{job.id}.json" not in self.watching.gone:
            self.is_broken(Broken("what was acknowledged is stored", f"{job.id} has no record", job.id))
        if job.id not in self.known_jobs:
            self.known_jobs.append(job.id)

    def stop_landed(self, sender: Participant) -> None:
        """Note a written stop request; its sender may be gone before it tells the job's agent."""
        if self.stormy and sender.name.startswith("user") and self._hang_ups.random() < self.people.hang_ups:
            self.note(sender.name, "hangs up")
            self._in(0.0, self.loop.crash, sender)

    def stop_acknowledged(self, job_id: str) -> None:
        job = self.watching.jobs.get(job_id)
        harmed = job_id in self.strangers.harmed
        if job is not None and not harmed and job.stop is None and job.status not in TERMINAL:
            self.is_broken(Broken("a stop that returned is recorded", f"{job_id}: {invariants.told(job)}", job_id))

    def outcome_seen(self, seen: JobRecord) -> None:
        now = self.watching.jobs.get(seen.id) if seen.id not in self.strangers.harmed else None
        if now is not None and (now.status, now.attempt) != (seen.status, seen.attempt):
            message = f"{seen.id}: a waiter saw {invariants.told(seen)}, it is {invariants.told(now)}"
            self.is_broken(Broken("an outcome that was seen stands", message, seen.id))
