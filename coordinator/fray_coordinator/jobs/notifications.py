"""Tells agents what changed: the doorbells, the index of owners of placements, each agent's mailbox, and drains.

A bell is a hint that an index changed; a lost ring costs latency. A bucket accepts one write of a key per second, and
many processes may ring at once. A process whose ring is rejected reads the bell. If somebody else has rung since, that
ring is as good as its own, because every listener lists the index afterwards.

The index of the owners of placements that have not ended is a hint, like the pending index: a submitter enters the
owner before the owner's record exists, and a repair enters owners that are missing. Its keys have no attempt: an owner
stays in the index until it has ended.

An agent's mailbox is a flag that asks it to read its jobs again. Lost mail costs at most a repair interval.
"""

from contextlib import suppress

from fray_coordinator.core import Core
from fray_coordinator.errors import AgentNotFound, BadRecord, StoreRefused, StoreUnavailable
from fray_coordinator.protocol.heartbeat import draining, with_mail
from fray_coordinator.protocol.placements.owners import entry_of_owner
from fray_coordinator.protocol.placements.rounds import OwnerRecord, owner_of
from fray_coordinator.store.interface import ABSENT, ANY, NAME_WRITE_INTERVAL
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PlacementKey
from fray_layouts.key_encoding import is_id
from fray_layouts.object_keys import AgentKeys, PoolKeys
from fray_layouts.records import AgentRecord, Doorbell, PlacementEntry
from fray_layouts.states import AgentState


async def ring(core: Core, pool: str) -> None:
    """Ring the doorbell of a pool, as `ring_bell` does."""
    await ring_bell(core, PoolKeys.doorbell(pool))


async def ring_bell(core: Core, key: str) -> None:
    """Change a bell's version, or see that somebody else has changed it. Reads the bell only if the ring is rejected.

    A process without the right to ring, or that finds something that is no doorbell, returns without a ring: others
    list the index anyway. Raises StoreUnavailable: neither happened within the store's patience.
    """
    with suppress(StoreRefused, BadRecord):
        await _ring_until_seen(core, key)


async def _ring_until_seen(core: Core, key: str) -> None:
    started, seen = core.clock.boottime(), ""
    while True:
        try:
            return await _ring_once(core, key)
        except StoreUnavailable:
            if core.clock.boottime() - started > core.store.patience:
                raise
        bell = await core.store.get(key)
        if bell is not None and bell.version != seen != "":
            return None
        seen = bell.version if bell is not None else ""
        await core.clock.sleep(core.jittered(NAME_WRITE_INTERVAL))


def new_bell(core: Core) -> Doorbell:
    """The bell as it is rung now."""
    return Doorbell(rung_at=core.now(), cluster=core.settings.cluster_id)


async def _ring_once(core: Core, key: str) -> None:
    await core.records.put(key, new_bell(core), ANY, patience=0.0)


async def ring_placements_bell(core: Core) -> None:
    """Tell the reconciler to read the index: an owner was submitted, has ended, or gathers its members anew."""
    await ring_bell(core, PlacementKey.bell)


async def enter(core: Core, record: OwnerRecord, again: bool = False) -> None:
    """Create the entry of an owner; `again` writes it as a new version even if it exists."""
    owner = owner_of(record)
    await core.records.put(entry_of_owner(owner).key(), PlacementEntry(owner=owner.id), ANY if again else ABSENT)


async def leave(core: Core, record: OwnerRecord) -> None:
    """Delete the entry of an owner that has ended."""
    await core.store.delete(entry_of_owner(owner_of(record)).key())


async def post_mail(core: Core, agent_id: str) -> None:
    """Put mail into the agent's record, unless it has unread mail, the agent has ended, or the record is unreadable."""
    with suppress(BadRecord):
        await core.records.change(AgentKeys.key(agent_id), AgentRecord, with_mail)


async def drain(core: Core, agent_id: str) -> str:
    """Ask the agent to take no more work and to leave when it has none; returns its id.

    Raises:
        InvalidInput: the text cannot be an agent's id.
        AgentNotFound: there is no live agent with this id.
    """
    if not is_id(agent_id):
        raise InvalidInput("agent", agent_id, "give the id of an agent, as `fray agents` shows it")
    key = AgentKeys.key(agent_id)
    update = await core.records.change(key, AgentRecord, draining)
    if update.stored is None or update.stored.record.state != AgentState.LIVE:
        raise AgentNotFound(
            f"there is no live agent {agent_id} under {core.root}; `fray agents` lists those that exist"
        )
    return agent_id
