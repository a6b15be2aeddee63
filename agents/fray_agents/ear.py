"""An agent's own small endpoint: it takes hints from those who have submitted or stopped something.

A hint says nothing that storage does not say; it only makes the agent look now. Losing every one costs latency only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fray_agents.reach import Reach
from fray_agents.rpc import RpcKey, Server
from fray_coordinator.core import Core
from fray_coordinator.keys import rpc_keys
from fray_layouts.records import Ear

if TYPE_CHECKING:
    from fray_agents.agent import Agent

NAME = "agent"
"""Under which the server has it."""


class Listener:
    """Serves one process's agent; open it in the agent's loop. `close` before the loop ends."""

    def __init__(self, core: Core, reach: Reach) -> None:
        found = reach.found(core.store.local)
        self._loop = asyncio.get_running_loop()
        self._agent: Agent | None = None
        self._server = Server(_Keys(core, self._loop), found.bind)
        self._server.add(NAME, self, methods=self._method)
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

    def _method(self, name: str) -> Callable[[], None]:
        """ "poke" or "look": the agent's method, called in its own loop."""
        if name not in ("poke", "look") or self._agent is None:
            raise AttributeError(name)
        hint: Callable[[], None] = getattr(self._agent, name)

        def pass_on() -> None:
            self._loop.call_soon_threadsafe(hint)

        return pass_on


class _Keys:
    """The cluster's keys for the server's threads; see `fray_agents.rpc.Keyring`."""

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop
        self._known: list[RpcKey] = []

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        if fresh or not self._known:
            found = asyncio.run_coroutine_threadsafe(rpc_keys(self._core), self._loop).result()
            self._known = [RpcKey(name, secret) for name, secret in found]
        return self._known
