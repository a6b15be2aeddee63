"""The real code with one rule about retries, time limits, places, dropped children or repairs switched off."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from fray_agents.agent import replica_runner
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.jobs import stopping, submission
from fray_coordinator.protocol import job_identity, retries, scheduling
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.reconcile import admission as admission_service
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import ExitKind
from tests.simulation.broken_code import Swap, Variants, everywhere
from tests.simulation.operators import Upkeep
from tests.simulation.scenario import Habits, Scenario

VARIANTS = Variants()
where = VARIANTS.where


def operators(**habits: float) -> list[Swap]:
    """A setting: every cluster has a busy operator with these habits only."""
    return [(Upkeep, "drawn", staticmethod(lambda draw, usual: Upkeep(1, 2.0, Habits(habits))))]


def hasty() -> list[Swap]:
    """A setting: every cluster archives and removes jobs soon."""
    real = Scenario.drawn

    def drawn(draw: random.Random) -> Scenario:
        while True:
            if (plan := real(draw)).quarantine < 600:
                return plan

    return [(Scenario, "drawn", staticmethod(drawn))]


@where(operators(retry_one=1.0))
def retries_keep_their_parent() -> list[Swap]:
    """A retry is submitted with the parent of the old job."""

    def kept(old: Any, **changes: Any) -> Any:
        return replace(old, **{name: new for name, new in changes.items() if name != "parent"})

    return [(submission, "replace", kept)]


@where(operators(retry_one=1.0))
def jobs_are_retried_while_they_run() -> list[Swap]:
    """A job that has not ended can be submitted again."""
    return everywhere(job_identity.retry_obstacle, lambda job, name: "")


@where(operators(submit_timed=1.0))
def time_limits_are_forgotten() -> list[Swap]:
    """Tasks are started without their time limit."""
    real = replica_runner.TaskSpec
    return [(replica_runner, "TaskSpec", lambda **given: real(**{**given, "timeout": None}))]


@where(operators(submit_timed=1.0))
def time_outs_count_as_preemptions() -> list[Swap]:
    """An attempt that ran out of its time does not count as the job's failure."""
    real = retries.after_exit

    def after_exit(job: Any, end: Any, *given: Any) -> Any:
        lenient = replace(end, kind=ExitKind.PREEMPTED) if end.kind == ExitKind.TIMEOUT else end
        return real(job, lenient, *given)

    return everywhere(real, after_exit)


@where(operators(submit_placed=1.0))
def places_are_ignored() -> list[Swap]:
    """Every host counts as one where the job may run."""
    return everywhere(scheduling.elsewhere, lambda wants, host: [])


@where(operators(drop_child=1.0))
def dropped_children_have_no_parent() -> list[Swap]:
    """The parent that a dropped file names is ignored."""
    return [(admission_service, "parse_spec", lambda data: replace(parse_spec(data), parent=""))]


@where(operators(drop_child=1.0))
def waiting_parents_count_as_over() -> list[Swap]:
    """A dropped child is rejected while its parent waits for its next attempt."""
    real = job_identity.judge_parent

    def judge(spec: Any, parent: Any) -> Any:
        verdict = real(spec, parent)
        return job_identity.ParentVerdict.OVER if verdict is job_identity.ParentVerdict.WAITS else verdict

    return everywhere(real, judge)


@where([*operators(repair=1.0), *hasty()])
def a_repair_forgets_the_archive() -> list[Swap]:
    """A repair takes what belongs to archived jobs for data without an owner."""

    def has_job(self: Snapshot, job: str) -> bool:
        return f"jobs/{job}.json" in self.stored

    return [(Snapshot, "has_job", has_job)]


@where(operators(drop_child=1.0))
def a_child_that_is_to_stop_loses_its_entry() -> list[Swap]:
    """The entry of a child is removed once the child was asked to stop."""
    return [(stopping, "is_terminal", lambda job: is_terminal(job) or job.stop is not None)]
