"""Jobs and the members of gangs as text for people and as JSON for scripts, with secret variables masked."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fray.cluster.job_info import exit_reason
from fray_coordinator.protocol.transitions import is_waiting
from fray_layouts.bounds import MAX_ATTEMPTS
from fray_layouts.records import (
    AttemptExit,
    Holding,
    JobRecord,
    PlacementMember,
    Record,
    ReplicaExit,
    Resources,
    ResourceUsage,
    total_usage,
)
from fray_layouts.spec import EnvironmentSpec, JobSpec, is_gang
from fray_layouts.states import ExitKind, HoldingPhase
from fray_layouts.units import counted, files_text, format_bytes, format_duration

MAX_MEMBERS = 32
"""How many members are listed one by one; members with something unusual come first."""

_USUAL_STATES = ("runs", "keeps room for it")
"""The beginnings of the states of members that are in order."""


class Members(msgspec.Struct, kw_only=True):
    """What is known about a gang's members besides its record.

    Attributes:
        holdings: by agent, its holding of the gang; without agents that are not live or have no holding of it.
        exits: by replica, how it ended; without replicas that have not ended.
    """

    holdings: dict[str, Holding] = {}
    exits: dict[int, ReplicaExit] = {}


def member_lines(job: JobRecord, members: Members) -> str:
    """A line for each member, and how many there are."""
    placement = job.placement
    if placement is None or not placement.members:
        return ""
    told = [(member, _state(job, member, members)) for member in placement.members]
    told.sort(key=lambda one: (one[1].startswith(_USUAL_STATES), min(one[0].bundles, default=0)))
    lines = [
        f"{_replicas_text(member.bundles)} on {member.host}, by {member.agent}{_slice_text(member)}: {state}"
        for member, state in told
    ]
    left = len(lines) - MAX_MEMBERS
    return "\n".join([*lines[:MAX_MEMBERS], *([f"and {left} more"] if left > 0 else [])])


def gang_json(job: JobRecord, members: Members) -> dict[str, Any]:
    """The members and the exits of replicas, for scripts."""
    placed = job.placement.members if job.placement is not None else []
    return {
        "members": [
            {
                "agent": member.agent,
                "host": member.host,
                "replicas": member.bundles,
                "state": _state(job, member, members),
                "usage": msgspec.to_builtins(members.holdings[member.agent].usage)
                if member.agent in members.holdings
                else None,
            }
            for member in placed
        ],
        "exits": {
            str(replica): {"agent": left.agent, "host": left.host, "kind": left.exit.kind, "message": left.exit.message}
            for replica, left in sorted(members.exits.items())
        },
    }


def as_one(holdings: Sequence[Holding]) -> Holding:
    """Combine the holdings of a gang's members into one, as if it ran on one agent."""
    activity = next((holding.activity for holding in holdings if holding.activity), "")
    usage = total_usage(holding.usage for holding in holdings)
    return msgspec.structs.replace(holdings[0], usage=usage, activity=activity)


def _state(job: JobRecord, member: PlacementMember, members: Members) -> str:
    """What the member does for the gang, in a few words."""
    ended = [replica for replica in member.bundles if replica in members.exits]
    holding = members.holdings.get(member.agent)
    if ended:
        ends = "; ".join(
            f"{_replicas_text([replica])} has ended ({_exit_text(members.exits[replica])})" for replica in ended
        )
        return f"{ends}, the others run" if len(ended) < len(member.bundles) else ends
    if job.ended_at is not None:
        return "left no exit"
    if is_waiting(job):
        return _reserved_text(job, holding)
    if holding is None:
        return "is silent"
    return (
        f"has attempt {holding.attempt}"
        if holding.attempt != job.attempt
        else holding.activity or _running_text(holding)
    )


def _reserved_text(job: JobRecord, holding: Holding | None) -> str:
    round = job.placement.round if job.placement is not None else 0
    if holding is None or (holding.attempt, holding.round) != (job.attempt, round):
        return "has no room yet"
    said: dict[str, str] = {
        HoldingPhase.RESERVED: "keeps room for it",
        HoldingPhase.REFUSED: "can never have room for it",
    }
    return said.get(holding.phase, "has no room yet")


def _running_text(holding: Holding) -> str:
    usage = holding.usage
    return f"runs ({usage.cpu_percent:.0f}% of a core, {format_bytes(usage.memory)})" if usage is not None else "runs"


def _exit_text(left: ReplicaExit) -> str:
    return left.exit.kind if left.exit.kind == ExitKind.SUCCESS else exit_reason(left.exit)


def _slice_text(member: PlacementMember) -> str:
    return f", host {member.slice.index} of slice {member.slice.id}" if member.slice is not None else ""


def _replicas_text(numbers: Iterable[int]) -> str:
    """Replicas by their numbers, such as "replicas 0-3, 8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    plural = len(runs) > 1 or (runs and len(runs[0]) > 1)
    return f"replica{'s' * bool(plural)} {', '.join(texts)}"


def hosts_text(job: JobRecord) -> str:
    """The hosts of a gang's members for a column of a table."""
    members: Sequence[PlacementMember] = job.placement.members if job.placement is not None else []
    hosts = list(dict.fromkeys(member.host for member in members))
    return ", ".join(hosts[:2]) + (f" +{len(hosts) - 2}" if len(hosts) > 2 else "")


MASK = "***"
"""Printed instead of the value of a secret variable."""

_WRITE_FIELDS = {field.name for field in msgspec.structs.fields(Record)}
"""Fields that every record has for its writers; they are of no use to readers."""


def job_json(job: JobRecord) -> dict[str, Any]:
    """A job's record for scripts: without secrets, pickles and ids of writes."""
    return record_json(masked(job))


def record_json(record: Record) -> dict[str, Any]:
    """A record for scripts: all fields but the ids of writes."""
    return {
        name: msgspec.to_builtins(getattr(record, name))
        for name in record.__struct_fields__
        if name not in _WRITE_FIELDS
    }


def usage_json(holding: Holding | None) -> Any:
    """The task's usage by its agent's last heartbeat; None if there is none."""
    return msgspec.to_builtins(holding.usage) if holding and holding.usage else None


def masked(job: JobRecord) -> JobRecord:
    """The record with secrets masked, and pickles replaced by their size."""
    environment = msgspec.structs.replace(
        job.spec.environment, secret_env_vars=dict.fromkeys(job.spec.environment.secret_env_vars, MASK)
    )
    entrypoint = job.spec.entrypoint
    call = entrypoint.callable
    if call is not None and call.pickle:
        size = f"<{len(call.pickle) * 3 // 4} bytes>"
        entrypoint = msgspec.structs.replace(entrypoint, callable=msgspec.structs.replace(call, pickle=size))
    spec = msgspec.structs.replace(job.spec, environment=environment, entrypoint=entrypoint)
    history = [msgspec.structs.replace(past, exit=_without_pickle(past.exit)) for past in job.history]
    end = _without_pickle(job.exit) if job.exit else None
    result = msgspec.structs.replace(job.result, data="", value=None) if job.result else None
    return msgspec.structs.replace(job, spec=spec, history=history, exit=end, result=result)


def _without_pickle(end: AttemptExit) -> AttemptExit:
    return msgspec.structs.replace(end, data="")


def job_row(job: JobRecord, holding: Holding | None, waiting: str, now: float, width: int = 0) -> list[str]:
    """A row of `fray ps`, in the order of `JOB_COLUMNS`.

    Args:
        waiting: why the job has not started, or does not end.
        width: most characters of the command; 0 for all.
    """
    usage = (holding.usage if holding else None) or (job.exit.usage if job.exit else None)
    began, ended = job.started_at, job.ended_at
    command = command_text(job.spec)
    return [
        job.id,
        display_status(job),
        str(job.attempt),
        format_duration(now - job.submitted_at),
        "" if began is None else format_duration((ended or now) - began),
        job.lease.host if job.lease else hosts_text(job),
        f"{usage.cpu_percent:.0f}%" if usage and holding else "",
        format_bytes(usage.memory if holding else usage.memory_peak) if usage else "",
        command if not width or len(command) <= width else f"{command[: width - 1]}…",
        waiting or (holding.activity if holding else "") or _reason(job),
    ]


def _reason(job: JobRecord) -> str:
    return "" if job.exit is None or job.exit.kind == ExitKind.SUCCESS else exit_reason(job.exit)


JOB_COLUMNS = ("JOB", "STATUS", "ATTEMPT", "AGE", "RAN", "HOST", "CPU", "MEMORY", "COMMAND", "REASON")


def display_status(job: JobRecord) -> str:
    """The job's status; "stopping" for one that was asked to stop and has not ended."""
    return "stopping" if job.stop is not None and job.ended_at is None else job.status


def describe(
    job: JobRecord, holding: Holding | None, members: Members, waiting: list[str], now: float
) -> list[tuple[str, str]]:
    """Describe a job for people, as pairs of label and text, without empty texts."""
    spec = job.spec
    pairs = [
        ("job", job.id),
        ("status", display_status(job)),
        ("waiting for" if is_waiting(job) else "trouble", "\n".join(waiting)),
        (
            "stop",
            f"{job.stop.reason or 'asked for'} (by {job.stop.by}, {format_time(job.stop.at, now)})" if job.stop else "",
        ),
        ("runs", what_runs(spec)),
        ("resources", _resources(spec)),
        ("replicas", _replicas(job)),
        ("members", member_lines(job, members)),
        ("workspace", _workspace(spec.environment)),
        ("packages", _packages(spec.environment)),
        ("image", spec.environment.docker_image),
        ("environment", _environment(spec)),
        ("pool", spec.pool),
        ("namespace", spec.namespace),
        ("user", spec.user),
        ("priority", str(spec.priority) if spec.priority else ""),
        ("parent", f"{job.parent.job} at attempt {job.parent.attempt}" if job.parent else ""),
        ("retry of", job.retry_of),
        ("submitted", format_time(job.submitted_at, now)),
        ("started", format_time(job.started_at, now)),
        ("ended", format_time(job.ended_at, now)),
        ("attempt", _attempt(job)),
        ("doing", holding.activity if holding else ""),
        ("gpus", ", ".join(map(str, holding.gpus)) if holding else ""),
        ("ports", _ports(job, holding)),
        ("uses", usage_text(holding.usage) if holding and holding.usage else ""),
        *(_exit(job.exit) if job.exit else []),
        ("result", f"{job.result.encoding}, {format_bytes(job.result.size)}" if job.result else ""),
        ("outputs", files_text(job.outputs.files, job.outputs.size) if job.outputs else ""),
        ("history", "\n".join(_history(job))),
    ]
    return [(label, text) for label, text in pairs if text]


def command_text(spec: JobSpec) -> str:
    """The job's command, or the name of its callable."""
    call = spec.entrypoint.callable
    return shlex.join(spec.entrypoint.command) if call is None else call.name or "a callable"


def what_runs(spec: JobSpec) -> str:
    """The job's command, or its callable with its size, for people."""
    call = spec.entrypoint.callable
    size = "" if call is None else f" ({call.blob or format_bytes(len(call.pickle) * 3 / 4)})"
    return f"{command_text(spec)}{size}"


def format_time(at: float | None, now: float) -> str:
    """A time for people, and how long ago it was; "" for None."""
    if at is None:
        return ""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}, {format_duration(now - at)} ago"


def usage_text(usage: ResourceUsage) -> str:
    """The resources that a task uses or used, for people."""
    parts = [f"{usage.cpu_seconds:.1f} s of CPU"]
    parts += [f"{usage.cpu_percent:.0f}% of a core"] if usage.cpu_percent else []
    parts += [f"{format_bytes(usage.memory)} of memory"] if usage.memory else []
    parts += [f"{format_bytes(usage.memory_peak)} at most"] if usage.memory_peak else []
    parts += [f"{format_bytes(usage.disk)} of disk"] if usage.disk else []
    return ", ".join(parts)


def resources_text(amount: Resources) -> str:
    """An amount of resources, for people."""
    device = f", {amount.device_count} x {amount.device}" if amount.device else ""
    device += "".join(f" and {share / 1000:g} of one" for share in amount.device_shares)
    return f"{counted(amount.cpu / 1000, 'core')}, {format_bytes(amount.memory)}{device}"


def _resources(spec: JobSpec) -> str:
    wants, device = spec.resources, spec.resources.device
    parts = [counted(wants.cpu, "core")]
    parts += _reserved("memory", wants.memory, wants.memory_limit)
    parts += _reserved("disk", wants.disk, wants.disk_limit)
    parts += [f"{device.count} x {device.kind} {device.variant}".strip()] if device and device.kind != "cpu" else []
    parts += [f"or {variant}" for variant in wants.device_alternatives]
    parts += [] if wants.preemptible else ["on a host that is not preemptible"]
    parts += [f"in {' or '.join(filter(None, [*wants.regions, wants.zone]))}"] if wants.regions or wants.zone else []
    parts += [f"where {name} is {value}" for name, value in wants.labels.items()]
    return ", ".join(parts)


def _replicas(job: JobRecord) -> str:
    """How many replicas a gang has, and where they have to run."""
    spec = job.spec
    if not is_gang(spec):
        return ""
    parts = [str(spec.replicas)]
    parts += [f"on {counted(spec.slices, 'whole slice')}"] if spec.slices else []
    parts += ["each on an agent of its own"] if spec.spread else []
    parts += [f"all in one {spec.same}"] if spec.same else []
    return ", ".join(parts)


def _reserved(what: str, size: int, limit: int) -> list[str]:
    """A part of `_resources`, which says whether the task may use more; empty if nothing is reserved."""
    return [f"{format_bytes(size)} of {what}{'' if limit else ' (reserved, not limited)'}"] if size else []


def _workspace(environment: EnvironmentSpec) -> str:
    brought = environment.workspace
    if brought is None:
        return ""
    digest = brought.blob.rpartition("/")[2][:12]
    place = f", starts in {brought.folder}" if brought.folder else ""
    return f"{files_text(brought.files, brought.size)}, sha256 {digest}{place}"


def _packages(environment: EnvironmentSpec) -> str:
    stated = environment.workspace.dependencies if environment.workspace is not None else ""
    extras = f"extras {', '.join(environment.extras)}" if environment.extras else ""
    groups = f"groups {', '.join(environment.groups)}" if environment.groups else ""
    python = f"Python {environment.python}" if environment.python else ""
    return ", ".join(filter(None, [stated, extras, groups, *environment.pip_packages, python]))


def _environment(spec: JobSpec) -> str:
    plain: Mapping[str, str] = spec.environment.env_vars
    lines = [f"{name}={value}" for name, value in plain.items()]
    return "\n".join([*lines, *(f"{name}={MASK}" for name in spec.environment.secret_env_vars)])


def _attempt(job: JobRecord) -> str:
    spec = job.spec
    where = f" on {job.lease.host}, by {job.lease.agent}" if job.lease else ""
    spent = [
        _budget(job.failures, "failed", spec.max_retries_failure),
        _budget(job.preemptions, "preempted", spec.max_retries_preemption),
        f"{job.start_failures} not started" if job.start_failures else "",
    ]
    return "; ".join([f"{job.attempt}{where}", *(text for text in spent if text)])


def _budget(spent: int, verb: str, limit: int) -> str:
    """How much of a retry budget is spent, and how large it is."""
    if not spent:
        return ""
    known = {0: "not tried again", 1: "tried again once", MAX_ATTEMPTS: "tried again whenever it is"}
    again = known.get(limit, f"tried again up to {counted(limit, 'time')}")
    return f"{verb} {counted(spent, 'time')} ({again})"


def _ports(job: JobRecord, holding: Holding | None) -> str:
    if holding is None or job.lease is None or not holding.ports:
        return ""
    return f"{', '.join(f'{name} {number}' for name, number in holding.ports.items())} on {job.lease.host}"


def _exit(end: AttemptExit) -> list[tuple[str, str]]:
    return [
        ("reason", exit_reason(end)),
        ("traceback", end.traceback.rstrip()),
        ("used", usage_text(end.usage) if end.usage else ""),
    ]


def _history(job: JobRecord) -> list[str]:
    return [
        f"attempt {past.attempt} on {past.host}: {format_duration(past.ended_at - past.started_at)}, "
        f"{exit_reason(past.exit)}"
        for past in job.history
    ]
