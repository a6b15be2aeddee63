"""One chaos run: a cluster with faults, then without, then checks of every promise."""

from __future__ import annotations

import asyncio
import random
import secrets
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from fray_coordinator import fsck
from fray_coordinator.core import Core, open_core
from fray_coordinator.errors import JobNotFound, StoreUnavailable
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.interface import ANY
from fray_layouts.records import JobRecord
from fray_layouts.spec import is_gang
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.work_keys import InboxKeys
from tests.chaos import roots
from tests.chaos.copier import Copier
from tests.chaos.effects import Effects, Window, in_trouble, job_of, read_effects
from tests.chaos.fleet import FRAY, Fleet, marked
from tests.chaos.havoc import Havoc
from tests.chaos.poisoner import Poisoner
from tests.chaos.timing import End, Sightings, distribution
from tests.chaos.workload import Planned, plan, wrong_outcomes


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    Attributes:
        kind: kind of the root: "local", "s3" (SeaweedFS), "moto", "gcs".
        seconds: seconds with faults.
        seed: decides the plan, the faults and their order, but not their moments.
        beat: seconds between heartbeats; death is declared after five of them.
        peace: seconds after the faults in which everything must end, and an agent's death must be noticed.
    """

    kind: str
    seconds: float
    jobs: int
    agents: int
    seed: int
    beat: float = 1.5
    peace: float = 240.0

    def __str__(self) -> str:
        """The command that runs it again."""
        return (
            f"python -m tests.chaos --root-kind {self.kind} --seconds {self.seconds:g} --jobs {self.jobs}"
            f" --agents {self.agents} --seed {self.seed} --beat {self.beat:g}"
        )


@dataclass(slots=True)
class Report:
    """The result of a run.

    Attributes:
        faults: promises that the cluster did not keep.
        lines: the events.
        unstruck: kinds of faults that did not occur.
        lacking: kinds of faults that are impossible on this machine.
    """

    faults: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    unstruck: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [*self.lines, *(f"NEVER STRUCK: {kind}" for kind in self.unstruck)]
        lines += [f"NOT POSSIBLE ON THIS MACHINE: {kind}" for kind in self.lacking]
        return "\n".join([*lines, *(f"FAULT {fault}" for fault in self.faults), f"{len(self.faults)} faults"])


def run(options: Options, folder: Path) -> Report:
    """Run in `folder`, which is empty."""
    print(options, flush=True)
    with roots.KINDS[options.kind](folder, options.beat) as root:
        fleet = Fleet(root.url, folder, root.environment, secrets.token_hex(8))
        try:
            return asyncio.run(_run(options, folder, root, fleet))
        finally:
            fleet.kill()


async def _run(options: Options, folder: Path, root: roots.Root, fleet: Fleet) -> Report:
    rng = random.Random(options.seed)
    folder_of_effects = folder / "effects"
    folder_of_effects.mkdir()
    core = await open_core(root.url, root.settings)
    sightings = Sightings(core, options.peace)
    poisoner = Poisoner(core, Path(root.url) if core.store.local else None, random.Random(options.seed))
    copier = Copier(core, poisoner.folder, folder / "copies", random.Random(options.seed))
    havoc = Havoc(core, root, fleet, sightings, options.agents, rng, poisoner, copier)
    planned = plan(options.jobs, 0.8 * options.seconds, options.beat, rng)
    report = Report(lacking=root.lacking)
    try:
        await havoc.restore()
        users = asyncio.create_task(_use(core, planned, folder_of_effects))
        await havoc.rage(options.seconds)
        await havoc.restore()
        await users
        await _stop_again(core, planned, copier)
        records = await _conclude(options, core, planned, fleet, sightings, havoc, report)
        effects = read_effects(folder_of_effects)
        report.faults += _wrong_attempts(effects, records, sightings.ends, havoc.windows + copier.windows, copier)
        report.faults += root.faults + copier.faults
        report.unstruck = havoc.unstruck()
        report.lines += [_told_of_attempts(effects), *_told_of_blows(havoc, sightings, effects)]
    finally:
        await core.store.close()
    return report


async def _use(core: Core, planned: Sequence[Planned], effects: Path) -> None:
    """Submit, drop and stop jobs at their times; repeat each until the storage answers."""
    started = time.monotonic()

    async def use(job: Planned) -> None:
        await asyncio.sleep(job.at - (time.monotonic() - started))
        await _persist(lambda: _submit(core, job, effects))
        if job.kind.stopped:
            await asyncio.sleep(job.stop_after)
            await _persist(lambda: stopping.stop(core, job.job_id, "chaos"))

    await asyncio.gather(*(use(job) for job in planned))


async def _submit(core: Core, job: Planned, effects: Path) -> None:
    spec = job.spec(effects)
    if job.kind.dropped:
        await core.store.put(InboxKeys.key(job.name), msgspec.json.encode(spec), ANY)
    else:
        await submit(core, [parse_spec(spec)])


async def _stop_again(core: Core, planned: Sequence[Planned], copier: Copier) -> None:
    """Stop jobs again whose stop may be gone, because somebody put their records back."""
    for job in planned:
        if job.kind.stopped and job.job_id in copier.touched:
            await _persist(partial(stopping.stop, core, job.job_id, "chaos"))


async def _persist(act: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await act()
            return
        except (StoreUnavailable, JobNotFound):
            await asyncio.sleep(0.5)


async def _conclude(
    options: Options,
    core: Core,
    planned: Sequence[Planned],
    fleet: Fleet,
    sightings: Sightings,
    havoc: Havoc,
    report: Report,
) -> list[JobRecord]:
    """Wait until everything has ended, then check the cluster's promises; return the records of all jobs."""
    began = time.monotonic()
    deadline = began + options.peace
    poisoner, copier = havoc.poisoner, havoc.copier
    records = await _until_all_ended(core, planned, poisoner, deadline)
    report.lines.append(f"all jobs had ended {time.monotonic() - began:.1f} s after the havoc")
    told = [problem.key for problem in await fsck.check(core)]
    report.faults += [f"fsck does not tell of {key!r}" for key in poisoner.unnamed(told)]
    await poisoner.clean_up()
    await copier.clean_up()
    troubles = await _until_clean(core, deadline)
    report.faults += [f"fsck: {problem.key}: {problem.what}" for problem in troubles]
    report.lines.append(f"fsck found everything in order {time.monotonic() - began:.1f} s after the havoc")
    await sightings.settle()  # while agents run that could notice
    report.faults += sightings.undetected
    codes = await fleet.leave()
    report.faults += [f"an agent ended with exit code {code}" for code in codes if code]
    report.faults += [f"a process was left: {_told(pid)}" for pid in await _until_none(fleet.mark)]
    after = await fsck.take_snapshot(core)
    report.faults += [f"{job.id} was changed after its end" for job in records if after.jobs.get(job.id) != job]
    report.faults += [f"{job.id} is {job.status}" for job in records if not is_terminal(job)]
    records = [job for job in records if copier.is_ours(job)]
    report.faults += wrong_outcomes(planned, records, copier.spared)
    report.faults += fleet.troubles()
    command = [str(FRAY), "fsck", "--root", core.root]
    checked = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True))
    if checked.returncode:
        report.faults.append(f"fray fsck: {checked.stdout}{checked.stderr}")
    report.lines.append(_outcomes(records))
    return records


async def _until_all_ended(
    core: Core, planned: Sequence[Planned], poisoner: Poisoner, deadline: float
) -> list[JobRecord]:
    """Wait until every planned job has a record and has ended, or for the deadline.

    Return records, without strangers'.
    """
    while True:
        records = [job for job in (await fsck.take_snapshot(core)).jobs.values() if poisoner.is_ours(job)]
        names = {record.spec.name for record in records}
        ended = all(map(is_terminal, records)) and all(job.name in names for job in planned)
        if ended or time.monotonic() > deadline:
            return records
        await asyncio.sleep(0.5)


async def _until_clean(core: Core, deadline: float) -> list[fsck.Problem]:
    """The problems at the deadline, without those that agents report about their damaged hosts."""
    while True:
        troubles = [found for found in await fsck.check(core) if not found.what.startswith("the agent says: ")]
        if not troubles or time.monotonic() > deadline:
            return troubles
        await asyncio.sleep(0.5)


async def _until_none(mark: str) -> list[int]:
    """The processes of agents that are left after ten seconds."""
    deadline = time.monotonic() + 10
    while True:
        left = marked(mark)
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.1)


def _told(pid: int) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
    except FileNotFoundError:
        return f"{pid}, gone meanwhile"


def _outcomes(records: Sequence[JobRecord]) -> str:
    statuses = {status: sum(job.status == status for job in records) for status in ("succeeded", "failed", "stopped")}
    children = sum(job.parent is not None for job in records)
    preempted = sum(job.preemptions for job in records)
    told = ", ".join(f"{count} {status}" for status, count in statuses.items())
    return f"{len(records)} jobs, {children} of them children: {told}; {preempted} attempts were cut short"


def _wrong_attempts(
    effects: Effects, records: Sequence[JobRecord], ends: Sequence[End], windows: Sequence[Window], copier: Copier
) -> list[str]:
    """Attempts that ran twice or beside the next one of their job, and results without the attempt's work.

    Jobs whose records somebody put back may run again.
    """
    spared = [job for job in records if copier.spared(job)]
    repeated = {job.id for job in records} - {job.id for job in spared}
    wrong = [f"run twice: {name}" for name in effects.doubles if job_of(name) not in repeated]
    wrong += effects.losses(spared)
    ended, gangs = {end.agent for end in ends}, {record.id for record in records if is_gang(record.spec)}
    for earlier, later in effects.overlaps():
        # An agent that is killed or frozen extends no deadline, also in an outage; and gangs have no outage grace.
        if later.job in repeated:
            continue
        if earlier.agent in ended or later.job in gangs or not in_trouble(earlier, later, windows):
            seconds = earlier.last_seen - later.begun
            wrong.append(f"{later.job}: attempt {earlier.number} ran {seconds:.2f} s beside {later.number}")
    return wrong


def _told_of_attempts(effects: Effects) -> str:
    begun = sum(map(len, effects.attempts.values()))
    return f"{begun} attempts began; {len(effects.overlaps())} ran beside the next one of their job"


def _told_of_blows(havoc: Havoc, sightings: Sightings, effects: Effects) -> list[str]:
    struck = havoc.struck + havoc.poisoner.struck + havoc.copier.struck
    put_back = havoc.copier.touched
    again = sum(any(job_of(name) == job for name in effects.doubles) for job in put_back)
    lines = [f"{len(put_back)} jobs may have been put back; {again} of them ran an attempt again"]
    lines += ["blows:", *(f"  {name:<32} {count}" for name, count in sorted(struck.items()))]
    for title, times in (("detection", sightings.detected), ("recovery", sightings.recovered(effects))):
        lines += [f"seconds to {title}:", *(distribution(how, found) for how, found in sorted(times.items()))]
    return lines
