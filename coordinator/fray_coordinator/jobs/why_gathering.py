"""Sentences for people about the agents that come closest to the needs of a waiting job or owner.

Explains in one line for people why a gang, a launch group or a reservation is not complete.

It looks at the records of the owner and of the live agents only, and makes no request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.families import families_first, jobs_of_families
from fray_coordinator.protocol.placements.hosts import HostView, host_view, lacks, newest_workers
from fray_coordinator.protocol.placements.owners import GANG, Owner, Part
from fray_coordinator.protocol.placements.rounds import missing_votes, vote_of
from fray_layouts.escaping import one_line
from fray_layouts.records import AgentRecord, Placement, Resources
from fray_layouts.states import HoldingPhase
from fray_layouts.units import counted, first_names


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


def why_gathering(owner: Owner, live: Sequence[AgentRecord], now: float) -> str:
    """Why an owner that is forming does not have all of its bundles. live: all live agents, of every pool."""
    return one_line(_why_unready(owner, live, now) if owner.placement.members else _why_unplaced(owner, live))


def _why_unready(owner: Owner, live: Sequence[AgentRecord], now: float) -> str:
    agents = {agent.id: agent for agent in live}
    if first := families_first(owner.placement):
        return _why_families_first(owner, first, agents)
    count = len(owner.placement.members)
    missing = missing_votes(owner, agents)
    if not missing:
        return f"all of its {count} agents keep room for it; it should start soon"
    others = f", nor do {len(missing) - 1} more" if len(missing) > 1 else ""
    why = _why_silent(owner, agents.get(missing[0]), now)
    kept = f"{count - len(missing)} of {count} agents keep room for it"
    return f"{kept}; {missing[0]} does not yet{others}: {why}{_when_again(owner.placement, now)}"


def _when_again(placement: Placement, now: float) -> str:
    """When a family that went before the owner may do so again; "" if none did."""
    times = [max(each.again - now, 0.0) for each in placement.first if each.again is not None]
    return f"; jobs that may need this room have gone first, and may again in {min(times):.0f} s" if times else ""


def _why_families_first(owner: Owner, first: Collection[str], agents: Mapping[str, AgentRecord]) -> str:
    """What goes before the owner, by the heartbeats of the members on which it runs."""
    members = [agents[m.agent] for m in owner.placement.members if m.agent in agents]
    there = {family: found for family, found in jobs_of_families(members).items() if family in first}
    if not there:
        return "jobs for which its hosts may be waiting go first for some minutes"
    job, agent = next(iter(there.values()))
    root = agents[agent].holdings[job].family
    family = f"{root} and all that was launched below it go" if root else "what it launched goes"
    return f"{job} must end first on {agent} and may wait for jobs that need this room, so {family} first"


def _why_silent(owner: Owner, agent: AgentRecord | None, now: float) -> str:
    if agent is None:
        return "it was not heard of lately"
    if vote_of(owner, agent, HoldingPhase.REFUSED):
        return "it can never have it, and is replaced"
    kept = (HoldingPhase.RESERVED, HoldingPhase.REFUSED)
    busy = [holding for job, holding in agent.holdings.items() if job != owner.id and holding.phase not in kept]
    if not busy:
        return agent.problem or "it has not answered"
    ends = [holding.ends_by for holding in busy if holding.ends_by is not None]
    until = f", in {max(*ends, now) - now:.0f} s at the latest" if len(ends) == len(busy) else ""
    names = first_names(sorted(job for job, holding in agent.holdings.items() if holding in busy), 2)
    return f"{counted(len(busy), 'job')} there must end first{until} ({names})"


def _why_unplaced(owner: Owner, live: Sequence[AgentRecord]) -> str:
    agents = [agent for agent in live if agent.pool == owner.pool]
    if not agents:
        return no_agent_in(owner.pool, live)
    hosts = {agent.id: host_view(agent, {}) for agent in agents}
    willing = [agent for agent in agents if hosts[agent.id].willing]
    if not willing:
        others = f"each live agent of pool {owner.pool} is drained, unfit, or of a version without gangs"
        return f"{others}: {agents[0].id} is one{_unfit(agents)}"
    alone = replace(owner, placement=Placement(refused=owner.placement.refused))
    views = [hosts[agent.id] for agent in willing]
    if assign(views, [alone])[owner.id].members:
        return "there are agents for all of it, but others that come before it have them, or it was not looked at yet"
    short = next(filter(None, (_short_of(owner, part, willing, hosts) for part in owner.parts)), _too_tight(owner))
    return short + _unfit(agents)


def _unfit(agents: Sequence[AgentRecord]) -> str:
    """The agents that take no work now, with the reason of one; "" if there are none."""
    unfit = [agent for agent in agents if agent.unfit]
    if not unfit:
        return ""
    return f"; unfit: {unfit[0].id}{of_several(unfit, 'is one')} ({unfit[0].problem})"


def _too_tight(owner: Owner) -> str:
    refused = len(owner.placement.refused)
    without = f", without {refused} that refused it" if refused else ""
    where = f" in one {owner.same}" if owner.same else ""
    return f"the live agents of pool {owner.pool}{without} have no room for all of it at once{where}"


def _short_of(owner: Owner, part: Part, agents: Sequence[AgentRecord], hosts: dict[str, HostView]) -> str:
    """What is short for one part of the owner; "" if that part alone would fit."""
    wants = {
        agent.id: min((lacks(hosts[agent.id], part, shape) for shape in part.variants()), key=len) for agent in agents
    }
    able = [hosts[agent.id] for agent in agents if not wants[agent.id] and agent.id not in owner.placement.refused]
    what = f"{_bundle(owner, part)} of {part.count}" if part.count > 1 else "it"
    if all(wants.values()):
        return none_could_run(what, owner.pool, agents, wants)
    if owner.same and not any(host.place(owner.same) for host in able):
        return f"no agent that could run it states its {owner.same}; start agents with --{owner.same} NAME"
    if part.slices:
        return _too_few_slices(part, able)
    room = sum(1 if part.spread else _fitting(host, part) for host in able)
    if room >= part.count:
        return ""
    spread = " on agents of their own" if part.spread else ""
    theirs = f"the {len(able)} live agents" if len(able) > 1 else "the only live agent"
    return (
        f"{part.count} are wanted at once{spread}, and {theirs} of pool {owner.pool} that could run "
        f"{_bundle(owner, part)} ha{'ve' if len(able) > 1 else 's'} room for {room}; ask for less, or start more agents"
    )


def _bundle(owner: Owner, part: Part) -> str:
    return "one" if owner.kind != GANG or part.count == 1 else "a replica"


def _fitting(host: HostView, part: Part) -> int:
    """How many bundles of the part fit on the host when it is empty; counts at most as many as the part needs."""
    need, left, count = host.needs(part.shape), host.room, 0
    while count < part.count and left.holds(need):
        left, count = left.less(need), count + 1
    return count


def _too_few_slices(part: Part, able: Sequence[HostView]) -> str:
    size = part.count // part.slices
    found = newest_workers(able)
    whole = [name for name, workers in found.items() if sorted(workers) == list(range(size))]
    if len(whole) >= part.slices:
        return ""
    kind = part.resources.device.variant if part.resources.device is not None else "TPU"
    absent = Counter({name: size - len(workers) for name, workers in found.items() if name not in whole})
    names = first_names([f"{name} lacks {count} of {size} hosts" for name, count in sorted(absent.items())], 3)
    lacking = f" ({names})" if names else ""
    return (
        f"{_slices(part.slices, kind)} wanted, {len(whole)} whole there{lacking}; start agents on every host of a slice"
    )


def _slices(count: int, kind: str) -> str:
    return f"{counted(count, 'slice')} of {kind} {'are' if count != 1 else 'is'}"
