"""A gang's members, for people: which are there, which are missing, and which replicas have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from fray.cluster.job_info import exit_reason
from fray_coordinator.protocol.transitions import is_waiting
from fray_layouts.records import Holding, JobRecord, PlacementMember, ReplicaExit, total_usage
from fray_layouts.states import ExitKind, HoldingPhase
from fray_layouts.units import format_bytes

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
