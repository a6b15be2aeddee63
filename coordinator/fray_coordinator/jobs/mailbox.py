"""The mailbox of an agent: a flag that asks it to read its jobs again. Lost mail costs at most a repair interval."""

from contextlib import suppress

from fray_coordinator.core import Core
from fray_coordinator.errors import AgentNotFound, BadRecord
from fray_coordinator.protocol.heartbeat import draining, with_mail
from fray_layouts.errors import InvalidInput
from fray_layouts.key_encoding import is_id
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord
from fray_layouts.states import AgentState


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
