"""A view from outside of all agents: the host and the process of each, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fray_agents.agent.agent import Agent
from fray_agents.agent.driver import DriverLease
from fray_layouts.object_keys import AgentKeys, JobKeys
from tests.simulation.clocks import HostClock
from tests.simulation.host import Host
from tests.simulation.loop import OWNER, Participant
from tests.simulation.storm import Storm

if TYPE_CHECKING:
    from tests.simulation.effects import Effects
    from tests.simulation.watching import Watching


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a driver's lease: what a host is for an agent."""

    name: str
    clock: HostClock
    agent: DriverLease


class Membership(Storm):
    """A world with agents.

    Attributes:
        agents: all agents and drivers that ever existed, by id.
        effects: the runs of all tasks.
    """

    watching: Watching
    effects: Effects

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.agents: dict[str, Agent | DriverLease] = {}
        self._process_of: dict[str, tuple[Participant, Host | Seat]] = {}
        self._gone_at: dict[Participant, float] = {}

    def here(self) -> Host:
        """The host of the process that runs now."""
        owner = OWNER.get()
        return next(host for host in self.hosts if host.process is owner)

    def made(self, agent: Agent) -> None:
        host = self.here()
        assert host.process is not None
        host.agent = self.agents[agent.id] = agent
        self._process_of[agent.id] = (host.process, host)

    def drives(self, lease: DriverLease) -> None:
        """Note that a program becomes a driver."""
        program, clock = OWNER.get(), lease._core.clock
        assert isinstance(clock, HostClock)
        self.agents[lease.agent] = lease
        self._process_of[lease.agent] = (program, Seat(program.name, clock, lease))

    def joined(self, agent_id: str, host: Host) -> None:
        self.note(host.name, "joins as", agent_id)

    def terminate(self, agent_id: str) -> None:
        """Send SIGTERM to the agent's process, if it is one of a host and is up."""
        process, host = self._process_of.get(agent_id, (None, None))
        if isinstance(host, Host) and host.process is process:
            host.terminate()

    def is_process_of(self, sender: Participant, agent_id: str) -> bool:
        found = self._process_of.get(agent_id)
        return found is not None and found[0] is sender

    def acts_for(self, sender: Participant, agent_id: str) -> bool:
        """Whether the sender is this agent's process and has not joined again under another id."""
        process, host = self._process_of.get(agent_id, (None, None))
        return process is sender and host is not None and host.agent is self.agents[agent_id]

    def is_up(self, agent_id: str) -> bool:
        found = self._process_of.get(agent_id)
        return found is not None and found[0].mode != "gone" and not self.agents[agent_id].member.fenced.is_set()

    def works(self, agent_id: str) -> bool:
        """Whether the agent's process is up and has this id."""
        process, host = self._process_of[agent_id]
        return process.mode == "up" and host.agent is self.agents[agent_id]

    def is_gone(self, agent_id: str, for_at_least: float = 0.0) -> bool:
        process = self._process_of[agent_id][0]
        return process.mode == "gone" and self.loop.now - self._gone_at[process] >= for_at_least

    def asleep_since(self, agent_id: str) -> float:
        """When the agent's process froze; infinity if it is awake."""
        return self._process_of[agent_id][0].asleep_since

    def same_host(self, sender: Participant, agent_id: str) -> bool:
        return sender.name.startswith(f"{self._process_of[agent_id][1].name}.")

    def holds_in_memory(self, agent_id: str, job: str, attempts: tuple[int, ...]) -> bool:
        if not self.is_up(agent_id):
            return False
        held = self.agents[agent_id].member.leases.held.get(job)
        return held is not None and held.attempt in attempts

    def last_asked(self, agent_id: str) -> float:
        """When the agent's process last sent a request about the agent's own record."""
        return self.connections[self._process_of[agent_id][0]].asked[AgentKeys.key(agent_id)]

    def listing(self, job: str) -> list[str]:
        """Agents that have the job in memory or in their record."""
        return [
            name
            for name, agent in self.agents.items()
            if job in agent.member.leases.held
            or job in agent.member.leases.placements
            or ((r := self.watching.agents.get(name)) is not None and job in r.holdings)
        ]

    def listed_by(self, agent_id: str) -> list[str]:
        """Jobs that the agent has in memory."""
        leases = self.agents[agent_id].member.leases if agent_id in self.agents else None
        return [*leases.held, *leases.placements] if leases is not None else []

    def problems_of(self, agent_id: str) -> dict[str, str]:
        """The problems of the agent's last pass and repair; its lease names only some of them."""
        agent = self.agents.get(agent_id)
        return agent._reconciler_loop._reconciler.problems if isinstance(agent, Agent) else {}

    def is_used(self, key: str) -> bool:
        """Whether the object is the record of a live process or of a running job."""
        agent, job = AgentKeys.parse(key) or "", JobKeys.parse(key) or ""
        lives = agent in self._process_of and not self.is_gone(agent, for_at_least=1.0)
        return lives or bool(self.effects.running.get(job))

    def trusted_until(self, agent_id: str) -> float | None:
        if not self.is_up(agent_id):
            return None
        return self._process_of[agent_id][1].clock.when(self.agents[agent_id].member.trusted_until)
