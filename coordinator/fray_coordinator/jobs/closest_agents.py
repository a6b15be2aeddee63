"""Sentences for people about the agents that come closest to the needs of a waiting job or owner."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fray_layouts.records import AgentRecord, Resources


def no_agent_in(pool: str, live: Iterable[AgentRecord]) -> str:
    """Say that the pool has no live agent, and in which pools there are some."""
    others = sorted({agent.pool for agent in live})
    elsewhere = f"; there are agents in pool {', '.join(others)}" if others else ""
    return f"no live agent in pool {pool}; start one with `fray agent --pool {pool}`{elsewhere}"


def none_could_run(what: str, pool: str, agents: Sequence[AgentRecord], lacks: Mapping[str, list[str]]) -> str:
    """Say that no agent of the pool could ever run `what`, and what the closest agent lacks."""
    closest = closest_of(agents, lacks, lambda agent: agent.capacity)
    return (
        f"no live agent of pool {pool} could ever run {what}: {closest.id}{of_several(agents, 'comes closest')} "
        f"({'; '.join(lacks[closest.id])}); ask for less, or start an agent that has it"
    )


def closest_of(
    agents: Sequence[AgentRecord], lacks: Mapping[str, list[str]], amount: Callable[[AgentRecord], Resources]
) -> AgentRecord:
    """The agent that lacks the fewest things; among equals, the one with the most resources."""

    def rank(agent: AgentRecord) -> tuple[int, int, int, int, str]:
        has = amount(agent)
        return len(lacks[agent.id]), -has.device_count, -has.cpu, -has.memory, agent.id

    return min(agents, key=rank)


def of_several(agents: Sequence[AgentRecord], what: str) -> str:
    """Words that mark an agent as one of several, such as " is one of 3"; "" if it is the only one."""
    return f" {what} of {len(agents)}" if len(agents) > 1 else ""
