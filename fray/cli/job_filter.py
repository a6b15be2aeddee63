"""The options by which `ps`, `stop` and `retry` choose jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fray.cli import output
from fray_layouts.errors import InvalidInput
from fray_layouts.states import AgentState

if TYPE_CHECKING:
    from fray.cli.app import App
    from fray_coordinator.core import Core
    from fray_layouts.records import AgentRecord, Holding, JobRecord

_ENDED = ("succeeded", "failed", "stopped")
STATES = ("pending", "gathering", "running", *_ENDED)


class FoundJobs(NamedTuple):
    """Jobs, the holdings of jobs that agents hold, the live agents, and the storage's time when they were read.

    Attributes:
        retried: the ids of jobs that were retried, as far as the records that were read tell.
    """

    jobs: list[JobRecord]
    holdings: dict[str, Holding]
    live: list[AgentRecord]
    now: float
    retried: set[str]


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a command selects; a field that is None allows any value.

    Attributes:
        namespace, user: of the jobs.
        name: a shell pattern for their names, such as "sweep-*".
        state: their state now.
    """

    namespace: str | None = None
    user: str | None = None
    name: str | None = None
    state: str | None = None

    def __bool__(self) -> bool:
        return self != JobFilter()

    @property
    def hint(self) -> str:
        """An addition to the message that there is no such job: `fray ps` shows ids, and a pattern may be of these."""
        return "; the name of a job is its id without the last part" if self.name else ""

    def allows(self, job: JobRecord) -> bool:
        """Whether the filter selects the job."""
        return (
            self.namespace in (None, job.spec.namespace)
            and self.user in (None, job.spec.user)
            and (self.name is None or fnmatchcase(job.spec.name, self.name))
            and self.state in (None, job.status)
        )

    def may_allow(self, job_id: str) -> bool:
        """Whether the filter may select the job of this id. The ids that no submitter chose contain the name."""
        from fray_layouts.object_keys import JobIds

        return self.name is None or not JobIds.is_fresh(job_id) or fnmatchcase(job_id.rpartition("-")[0], self.name)

    async def find(
        self, core: Core, problems: dict[str, str], ended: bool = False, limit: int | None = None
    ) -> FoundJobs:
        """Find the selected jobs, in order of submission, and their holdings in the agents' records.

        Args:
            problems: is filled with the records that cannot be read.
            ended: also find jobs that have ended. Without a limit this costs a read of each; so does a filter for such
                a state.
            limit: find only the last so many that were submitted.
        """
        from fray.cli.job_view import as_one
        from fray_coordinator.jobs.lookup import active_jobs, all_jobs, last_jobs, live_agents, read_agents

        stored = await read_agents(core, problems)
        agents = [agent.record for agent in stored]
        ended = ended or self.state in _ENDED
        if ended and limit is not None:
            jobs = await last_jobs(core, problems, self.allows, self.may_allow, limit)
        elif ended:
            jobs = await all_jobs(core, problems)
        else:
            jobs = await active_jobs(core, agents, problems, self.allows, self.may_allow, limit)
        live = [agent for agent in agents if agent.state == AgentState.LIVE]
        held: dict[str, list[Holding]] = {}
        for agent in live:
            for job, holding in agent.holdings.items():
                held.setdefault(job, []).append(holding)
        found = [job for job in jobs if self.allows(job)][-limit if limit else None :]
        holdings = {job.id: as_one(held[job.id]) for job in found if job.id in held and job.ended_at is None}
        retried = {job.retry_of for job in jobs}
        return FoundJobs(found, holdings, live_agents(stored, core.now()), core.now(), retried)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a `JobFilter` to a command; they arrive as arguments named like its fields."""
    options = [
        click.option("--namespace", metavar="TEXT", help="Only jobs of this namespace."),
        click.option("--user", metavar="TEXT", help="Only jobs that this user submitted."),
        click.option("--name", metavar="PATTERN", help="Only jobs whose name matches, such as 'sweep-*'."),
        click.option("--state", type=click.Choice(STATES), help="Only jobs in this state."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def chosen_jobs(
    app: App, verb: str, texts: Sequence[str], chosen: JobFilter, everything: bool = False, ended: bool = False
) -> list[JobRecord]:
    """The jobs that a command changes: the named ones, or all that `chosen` selects and nobody has retried yet.

    Args:
        verb: what the command does, for the question that is asked if a text is not a whole id.
        everything: whether `chosen` may be empty, which selects all jobs.
        ended: whether the command is for jobs that have ended; otherwise for jobs that have not. A whole id names any
            job.

    Raises:
        UsageError: the user gives neither names nor options, or both.
        JobNotFound: there is no job for one of the texts.
        InvalidInput: a text is not a whole id, and there is no terminal on which to ask.
    """
    if bool(texts) == (everything or bool(chosen)):
        raise click.UsageError(
            f"name the jobs to {verb}, or choose them with options such as --name 'sweep-*'; see fray {verb} --help"
        )

    def is_meant(job: JobRecord) -> bool:
        return (job.ended_at is not None) == ended

    if texts:
        found = app.run(lambda core: _find_named(core, texts, is_meant))
        for text, job in zip(texts, found, strict=True):
            _confirm(verb, text, job.id)
        return found
    problems: dict[str, str] = {}
    allowed = app.run(lambda core: chosen.find(core, problems, ended))
    app.warn(problems)
    meant = [job for job in allowed.jobs if is_meant(job) and job.id not in allowed.retried]
    if not meant:
        output.echo(f"fray: there is no such job to {verb}{chosen.hint}", err=True)
    return meant


async def _find_named(core: Core, texts: Sequence[str], is_meant: Callable[[JobRecord], bool]) -> list[JobRecord]:
    from fray_coordinator.concurrency import map_concurrently
    from fray_coordinator.jobs.lookup import find_job

    return [job.record for job in await map_concurrently(texts, lambda text: find_job(core, text, is_meant))]


def _confirm(verb: str, text: str, job: str) -> None:
    if text == job:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(
            "job", text, f"it matches {job}; give the whole id to {verb} it, because there is no terminal to confirm it"
        )
    if not click.confirm(f"fray: {verb} {job}?", err=True):
        output.echo(f"fray: {job} is unchanged", err=True)
        raise click.exceptions.Exit(1)
