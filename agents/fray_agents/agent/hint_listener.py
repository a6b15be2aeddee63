"""An agent's own small endpoint: it takes hints from those who have submitted or stopped something.

A hint says nothing that storage does not say; it only makes the agent look now. Losing every one costs latency only.
However many come, the agent looks no more often than the pauses here allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fray_agents.host.network import NetworkSettings
from fray_agents.rpc.hints import HintServer
from fray_agents.rpc.wire.key_cache import KeyCache
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.core import Core
from fray_layouts.records import HintEndpoint

if TYPE_CHECKING:
    from fray_agents.agent.agent import Agent


POKES_APART, LOOKS_APART = 0.1, 1.0
"""Seconds between two looks that hints lead to: for work, which is one request; and at all that the agent holds."""


class HintThrottle:
    """Does something once it is asked to, as soon as the last time is so many seconds ago."""

    def __init__(self, act: Callable[[], None], apart: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._act = act
        self._apart = apart
        self._not_before = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._closed = False

    def ask(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._ask)

    def cancel(self) -> None:
        """Do it no more."""
        self._closed = True
        if self._due is not None:
            self._due.cancel()

    def _ask(self) -> None:
        if self._due is None and not self._closed:
            self._due = self._loop.call_at(self._not_before, self._do)

    def _do(self) -> None:
        self._due, self._not_before = None, self._loop.time() + self._apart
        self._act()


class HintListener:
    """Serves one process's agent; open it in the agent's loop. `close` before the loop ends."""

    def __init__(self, core: Core, reach: NetworkSettings) -> None:
        found = reach.found(core.store.local)
        self._agent: Agent | None = None
        self._poking, self._looking = HintThrottle(self._poke, POKES_APART), HintThrottle(self._look, LOOKS_APART)
        hints = {"poke": self._poking.ask, "look": self._looking.ask}
        self._server = HintServer(_ClusterKeys(core, asyncio.get_running_loop()), found.bind, hints)
        self.hint_endpoint = HintEndpoint(
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
        for hinted in (self._poking, self._looking):
            hinted.cancel()

    def _poke(self) -> None:
        assert self._agent is not None, "it listens once there is one"
        self._agent.poke()

    def _look(self) -> None:
        assert self._agent is not None, "it listens once there is one"
        self._agent.look()


class _ClusterKeys(KeyCache):
    """The cluster's keys for the server's threads, read in the agent's loop."""

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lambda: asyncio.run_coroutine_threadsafe(rpc_keys(core), loop).result())
        self.encrypted = core.settings.encrypt
