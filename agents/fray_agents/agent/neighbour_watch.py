"""Notices that the agent of a gang's next member has ended or fallen silent, where agents reach one another.

Each member of a gang that runs asks the one after it, without a request to the store. Otherwise a death that makes no
other replica fail would be noticed when the agent counts as dead, some five heartbeats later. That an agent has ended
takes two seconds. One that does not answer may be frozen, cut off, or its host dead: it is lost once it owes a
heartbeat, too. If it lives after all, one attempt is lost; the next one waits until its replica is gone.
"""

from contextlib import suppress

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.jobs.gang_commit import end_without
from fray_coordinator.jobs.gang_peers import AskPeer, PeerAnswer
from fray_coordinator.protocol.heartbeat import is_fenced, with_bounded_interval
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, JobRecord, PlacementMember

ASK_INTERVAL = 0.7
"""Seconds between two questions, about."""

REFUSALS = 2
"""Answers in a row that nobody listens, until the agent counts as ended. It must have answered before: something on the
way may refuse connections to agents that live."""

SILENCES = 3
"""Questions in a row without an answer, of some 2.7 s each, until the agent's heartbeat is looked at: it must have
answered before, as above."""

BEAT_DELAY = 2.0
"""Seconds by which the heartbeat of an agent that lives may come later than promised: a write that is repeated."""


async def watch_neighbour(core: Core, job: Stored[JobRecord], own: AgentRecord, ask: AskPeer) -> bool:
    """Ask the next member's agent until it has ended, and write what follows for the gang then.

    Args:
        job: the record at the attempt that runs.
        own: the record of the agent that asks.

    Returns:
        Whether anything was written; False if there is nobody to ask.

    Raises:
        StoreError, BadRecord: it could not be read or written. The agent will be declared dead as any other.
    """
    peer = neighbour(job.record, own.id)
    if peer is None or own.hint_endpoint is None:
        return False
    await core.clock.sleep(core.jittered(ASK_INTERVAL))
    endpoint = await _endpoint(core, peer, own.network)
    if endpoint is None:
        return False
    answer, times, has_answered = PeerAnswer.SILENT, 0, False
    while not (has_answered and await _is_lost(core, peer, answer, times)):
        before, answer = answer, await ask(endpoint)
        times = times + 1 if answer is before else 1
        has_answered |= answer is PeerAnswer.LIVES
        await core.clock.sleep(core.jittered(ASK_INTERVAL))
    await end_without(core, job, peer.agent, "died" if answer is PeerAnswer.GONE else "does not answer any more")
    return True


async def _is_lost(core: Core, peer: PlacementMember, answer: PeerAnswer, times: int) -> bool:
    """Whether the member's agent has ended, or owes both answers and a heartbeat. times: the last answers in a row."""
    if answer is not PeerAnswer.SILENT or times < SILENCES:
        return answer is PeerAnswer.GONE and times >= REFUSALS
    with suppress(StoreError, BadRecord):  # nothing is known then
        found = await core.records.read(AgentKeys.key(peer.agent), AgentRecord, one_of_many=True)
        if found is None or is_fenced(found.record):
            return True
        interval = with_bounded_interval(found.record, core.settings).interval
        return core.now() - found.updated > interval + BEAT_DELAY
    return False


def neighbour(job: JobRecord, agent: str) -> PlacementMember | None:
    """The member after `agent`, round the gang's list of them; None if there is no other."""
    members = job.placement.members if job.placement is not None else []
    places = [place for place, member in enumerate(members) if member.agent == agent]
    if not places or len(members) == 1:
        return None
    return members[(places[0] + 1) % len(members)]


async def _endpoint(core: Core, peer: PlacementMember, network: str) -> HintEndpoint | None:
    """Where the member's agent takes hints, if it does so in this network."""
    found = record_of(await core.records.read(AgentKeys.key(peer.agent), AgentRecord, one_of_many=True))
    return found.hint_endpoint if found is not None and found.inbound and found.network == network else None
