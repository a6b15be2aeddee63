"""The essence of a gang's record, its agents and their exits, as small hashable values; and the rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    ClusterSettings,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    ReplicaExit,
    StopRequest,
)
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import HoldingPhase

NOW = 1000.0
SETTINGS = ClusterSettings(requeue_backoff=0.0, host_killer_limit=99)
NEED, AGENTS = 2, 3
SPEC = parse_spec({"name": "g", "entrypoint": {"command": ["x"]}, "replicas": NEED, "max_retries_failure": 1})

TWICE = "two attempts of the gang run at once"
THROWN_AWAY = "a complete result is thrown away"
TOO_GOOD = "success without every replica"
STOPPED_EARLY = "stopped while replicas of live agents run"
AFTER_STOP = "a later attempt after a stop"
MISCOUNTED = "more failures are counted than there were"


@dataclass(frozen=True)
class Rules:
    """The rules that close a hole; each can be switched off."""

    same_host: bool = True
    """An agent votes only once its own earlier replica is gone."""
    old_listed: bool = True
    """The pass starts an attempt only if no live agent lists an earlier one."""
    trust: bool = True
    """A replica is started only by an agent that trusts its leases."""
    no_grace: bool = True
    """A replica ends with its agent's trust."""
    exit_first: bool = True
    """The exit is stored before anything else is written, or the gang is dropped."""
    burial_looks: bool = True
    """The reaper of a dead member looks at its exit."""
    last_commits: bool = True
    """Any member that sees all exits writes the end, not a fixed one."""
    stop_waits: bool = True
    """A stopped gang has ended when all replicas have."""
    heeds_stop: bool = True
    """A requeue of a gang looks at the stop."""
    fence: bool = True
    """A failure is written on condition of the attempt."""
    watch: bool = True
    """Members look at the record while they run."""
    record_first: bool = True
    """The record is read before the exits are listed."""
    peers: bool = True
    """A member that is about to write a failure checks whether the others live."""


Stored: TypeAlias = tuple[tuple[int, int, str], ...]
"""Exits: (attempt, replica, kind)."""


class Gang(NamedTuple):
    """The essence of the job's record."""

    status: str = "gathering"
    attempt: int = 1
    round: int = 0
    members: tuple[int, ...] = ()
    stop: bool = False
    failures: int = 0


class Agent(NamedTuple):
    """The essence of an agent.

    Attributes:
        mode: "up", "frozen", "gone"; `leaving`: it was told to leave.
        state: of its record.
        phase: "", "voted", "running", "killed", "ended" (the process is gone), "stored" (its exit is), "read" (the
            record is).
        attempt, round, replica: of what it has; `kind`: how its replica ended.
        proc: the attempt whose process lives on its host; 0: none.
        listed: (attempt, round) that its record lists; (0, 0): nothing.
        snap: the record that it has read to write the end; `exits`: those that it has listed before, without the rule.
    """

    mode: str = "up"
    leaving: bool = False
    state: str = "live"
    phase: str = ""
    attempt: int = 0
    round: int = 0
    replica: int = 0
    kind: str = ""
    proc: int = 0
    listed: tuple[int, int] = (0, 0)
    snap: Gang | None = None
    exits: Stored = ()


class World(NamedTuple):
    """Everything. exits: (attempt, replica, kind); broke: attempts in which a replica has ended badly; fails: own."""

    gang: Gang = Gang()
    agents: tuple[Agent, ...] = (Agent(),) * AGENTS
    exits: Stored = ()
    broke: int = 0
    fails: int = 0
    faults: tuple[str, ...] = ()


@cache
def record_of(gang: Gang) -> JobRecord:
    """The real record for the essence `gang`."""
    members = [PlacementMember(agent=str(n), host=str(n), bundles=[b]) for b, n in enumerate(gang.members)]
    return JobRecord(
        id="g",
        spec=SPEC,
        status=gang.status,
        attempt=gang.attempt,
        placement=Placement(round=gang.round, members=members),
        failures=gang.failures,
        stop=StopRequest(at=NOW) if gang.stop else None,
        started_at=NOW,
    )


def essence(record: JobRecord) -> Gang:
    """The essence of a record."""
    placement = record.placement or Placement()
    members = tuple(int(member.agent) for member in placement.members)
    return Gang(record.status, record.attempt, placement.round, members, record.stop is not None, record.failures)


def beat(number: int, agent: Agent) -> AgentRecord:
    """The real record of an agent."""
    attempt, round_ = agent.listed
    held = Holding(attempt=attempt, phase=HoldingPhase.RESERVED, round=round_, bundles=[agent.replica])
    holdings = {"g": held} if attempt else {}
    return AgentRecord(id=str(number), host=str(number), pool="default", state=agent.state, holdings=holdings)


@cache
def exits_at(stored: Stored, attempt: int) -> dict[int, ReplicaExit]:
    """The exits of one attempt, by replica."""
    return {
        replica: ReplicaExit(agent="?", host="?", exit=AttemptExit(kind=kind), ended_at=NOW)
        for n, replica, kind in stored
        if n == attempt
    }


def of_agents(gang: Gang, found: dict[int, ReplicaExit]) -> dict[int, ReplicaExit]:
    """The exits with the agents that left them, by the members of the record."""
    return {n: replace(left, agent=str(gang.members[n])) for n, left in found.items() if n < len(gang.members)}
