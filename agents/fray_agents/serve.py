"""`fray agent`: an agent as a process, with signals, joining anew after it was declared dead."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace

from fray_agents.agent import Agent, AgentOptions, Departure
from fray_agents.ear import Listener
from fray_agents.spares import Spares
from fray_coordinator.core import open_core


async def serve(root: str, options: AgentOptions, on_join: Callable[[str], None] = lambda agent_id: None) -> None:
    """Serve the cluster under `root` until SIGTERM or SIGINT; a second signal is immediate.

    Args:
        on_join: told the id under which the agent joins; again after it was declared dead.

    Raises:
        RootMismatch, StoreRefused, StoreUnavailable: the cluster cannot be opened.
    """
    core = await open_core(root)
    loop = asyncio.get_running_loop()
    listener = Listener(core, options.reach) if options.reach.inbound else None
    spares = Spares(options.preload)
    options = replace(options, start_task=spares.start, ear=listener.ear if listener else None)
    leaving = False
    agent: Agent | None = None

    def leave() -> None:
        nonlocal leaving
        leaving = True
        if agent is not None:
            agent.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    try:
        while not leaving:
            agent = Agent(core, options)
            if listener is not None:
                listener.listen(agent)
            on_join(agent.id)
            if await agent.run() is Departure.LEFT:
                return
            options = replace(options, rejoins=True)
    finally:
        await spares.close()
        if listener is not None:
            listener.close()
        await core.store.close()
