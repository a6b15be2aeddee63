"""Notices within two seconds that the agent of a gang's next member has ended, where agents reach one another.

Each member of a gang that runs asks the one after it, without a request to the store. Otherwise a death that makes no
other replica fail would be noticed when the agent counts as dead, some five heartbeats later.
"""

from fray_coordinator.core import Core
from fray_coordinator.jobs.gang_commit import end_without
from fray_coordinator.jobs.gang_peers import AskPeer, PeerAnswer
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, JobRecord, PlacementMember

ASK_INTERVAL = 0.7
"""Seconds between two questions, about."""

REFUSALS = 2
"""Answers in a row that nobody listens, until the agent counts as ended. It must have answered before: something on the
way may refuse connections to agents that live."""


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
    has_answered, refusals = False, 0
    while refusals < REFUSALS:
        answer = await ask(endpoint)
        has_answered = has_answered or answer is PeerAnswer.LIVES
        refusals = refusals + 1 if has_answered and answer is PeerAnswer.GONE else 0
        await core.clock.sleep(core.jittered(ASK_INTERVAL))
    await end_without(core, job, peer.agent)
    return True


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
