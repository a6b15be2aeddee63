"""Notices early that the agent of a gang's next member has died or fallen silent, where agents reach one another.

Each member of a running gang asks the agent of the member after it, without a request to the store. Otherwise a death
that makes no other replica fail is noticed only when the agent counts as dead, some five heartbeats later. An agent
that has ended is noticed within two seconds. One that does not answer may be frozen or cut off, or its host may be
dead: it counts as lost only once its heartbeat is overdue too. If it is alive after all, one attempt is lost, and the
next attempt waits until its replica is gone. A gang that is to be stopped waits for the replica's exit, or until the
agent counts as dead: its end says that nothing runs any more.
"""

from contextlib import suppress

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.jobs.gang_commit import end_without
from fray_coordinator.jobs.gang_peers import AskPeer, PeerAnswer
from fray_coordinator.protocol.heartbeat import is_fenced, with_bounded_interval
from fray_coordinator.protocol.placements.gang_end import runs_gang
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, JobRecord, PlacementMember

ASK_INTERVAL = 0.7
"""Average seconds between two questions."""

REFUSALS = 2
"""Refused connections in a row after which the agent counts as ended. It must have answered before, because something
between the hosts may refuse connections to live agents."""

SILENCES = 3
"""Unanswered questions in a row, of some 2.7 s each, after which the agent's heartbeat is read. It must have answered
before, as above."""

BEAT_DELAY = 2.0
"""Seconds that a live agent's heartbeat may come later than promised: the time of a repeated write."""


async def watch_neighbour(core: Core, job: Stored[JobRecord], own: AgentRecord, ask: AskPeer) -> bool:
    """Ask the next member's agent until it has ended, and then write the consequences for the gang.

    Args:
        job: the record at the attempt that runs.
        own: the record of the agent that asks.

    Returns:
        Whether the attempt has ended; False also if there is no agent to ask.

    Raises:
        StoreError, BadRecord: a record could not be read or written. The agent will still be declared dead.
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
    gone = answer is PeerAnswer.GONE
    why = "died" if gone else "does not answer any more"
    now = await end_without(core, job, peer.agent, why, may_run=not gone)
    return now is None or not runs_gang(now.record, job.record.attempt, own.id)


async def _is_lost(core: Core, peer: PlacementMember, answer: PeerAnswer, times: int) -> bool:
    """Whether the member's agent has ended, or owes answers and a heartbeat. times: equal last answers in a row."""
    if answer is not PeerAnswer.SILENT or times < SILENCES:
        return answer is PeerAnswer.GONE and times >= REFUSALS
    with suppress(StoreError, BadRecord):  # its heartbeat is unknown then
        found = await core.records.read(AgentKeys.key(peer.agent), AgentRecord, one_of_many=True)
        if found is None or is_fenced(found.record):
            return True
        interval = with_bounded_interval(found.record, core.settings).interval
        return core.now() - found.updated > interval + BEAT_DELAY
    return False


def neighbour(job: JobRecord, agent: str) -> PlacementMember | None:
    """The member after `agent` in the gang's list, which wraps round; None if there is no other."""
    members = job.placement.members if job.placement is not None else []
    places = [place for place, member in enumerate(members) if member.agent == agent]
    if not places or len(members) == 1:
        return None
    return members[(places[0] + 1) % len(members)]


async def _endpoint(core: Core, peer: PlacementMember, network: str) -> HintEndpoint | None:
    """The endpoint where the member's agent receives hints, if it does so in this network."""
    found = record_of(await core.records.read(AgentKeys.key(peer.agent), AgentRecord, one_of_many=True))
    return found.hint_endpoint if found is not None and found.inbound and found.network == network else None
