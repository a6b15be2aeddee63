"""An agent's own small endpoint: it takes hints from those who have submitted or stopped something.

A hint says nothing that storage does not say; it only makes the agent look now. Losing every one costs latency only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fray_agents.reach import Reach
from fray_agents.rpc.hints import HintServer
from fray_agents.rpc.keycache import KeyCache
from fray_coordinator.core import Core
from fray_coordinator.keys import rpc_keys
from fray_layouts.records import Ear

if TYPE_CHECKING:
    from fray_agents.agent import Agent


class Listener:
    """Serves one process's agent; open it in the agent's loop. `close` before the loop ends."""

    def __init__(self, core: Core, reach: Reach) -> None:
        found = reach.found(core.store.local)
        self._loop = asyncio.get_running_loop()
        self._agent: Agent | None = None
        hints = {"poke": self._poke, "look": self._look}
        self._server = HintServer(_Keys(core, self._loop), found.bind, hints)
        self.ear = Ear(
            address=f"{found.advertise}:{self._server.address.rpartition(':')[2]}", nonce=self._server.identity
        )

    def listen(self, agent: Agent) -> None:
        """Pass hints on to `agent` from now on."""
        first, self._agent = self._agent is None, agent
        if first:
            self._server.start()

    def close(self) -> None:
        """Take no more."""
        self._server.close()

    def _poke(self) -> None:
        assert self._agent is not None, "it listens once there is one"
        self._loop.call_soon_threadsafe(self._agent.poke)

    def _look(self) -> None:
        assert self._agent is not None, "it listens once there is one"
        self._loop.call_soon_threadsafe(self._agent.look)


class _Keys(KeyCache):
    """The cluster's keys for the server's threads, read in the agent's loop."""

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lambda: asyncio.run_coroutine_threadsafe(rpc_keys(core), loop).result())
        self.encrypted = core.settings.encrypt
