"""An agent's endpoint for hints from programs that have submitted or stopped something.

A hint says nothing that storage does not say; it only makes the agent read storage now, so a lost hint costs latency
only. However many hints come, the agent reads no more often than the intervals here allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fray_agents.agent.agent import Agent
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.core import Core
from fray_layouts.records import HintEndpoint
from fray_layouts.states import Hint
from fray_rpc.hints import HintServer
from fray_rpc.wire.http_connection import host_and_port
from fray_rpc.wire.key_cache import KeyCache
from fray_runtime.network import NetworkSettings

SUBMITTED_INTERVAL, STOPPED_INTERVAL, PLACEMENTS_INTERVAL = 0.1, 1.0, 0.1
"""Least seconds between two reads caused by hints: of the doorbell (one request), of the records of all held jobs, and
of the records of placement owners that are not complete yet and of their members."""

PLACEMENTS_BURST = 4
"""Reads of placements that need not wait for one another: when a gang starts again, a member gets three hints within a
quarter of a second, for the end, its vote and the start."""


class HintThrottle:
    """Calls a function when asked to, from any thread, at most once an interval; after a pause up to `burst` times."""

    def __init__(self, act: Callable[[], None], interval: float, burst: int = 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._act = act
        self._interval = interval
        self._ahead = (burst - 1) * interval
        self._not_before = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._closed = False

    def ask(self) -> bool:
        """Call the function as soon as the interval allows."""
        self._loop.call_soon_threadsafe(self._ask)
        return True

    def cancel(self) -> None:
        self._closed = True
        if self._due is not None:
            self._due.cancel()

    def _ask(self) -> None:
        if self._due is None and not self._closed:
            self._due = self._loop.call_at(self._not_before - self._ahead, self._fire)

    def _fire(self) -> None:
        self._due, self._not_before = None, max(self._not_before, self._loop.time()) + self._interval
        self._act()


class HintListener:
    """The hint server of one process, for each agent that runs in it; created and closed in the agent's loop."""

    def __init__(self, core: Core, network: NetworkSettings) -> None:
        resolved = network.resolved(core.store.local)
        self._agent: Agent | None = None
        self._throttles = {
            Hint.SUBMITTED: HintThrottle(lambda: self._current_agent.look_for_work(), SUBMITTED_INTERVAL),
            Hint.STOPPED: HintThrottle(lambda: self._current_agent.check_jobs(), STOPPED_INTERVAL),
            Hint.PLACEMENTS: HintThrottle(
                lambda: self._current_agent.check_placements(), PLACEMENTS_INTERVAL, PLACEMENTS_BURST
            ),
        }
        hints: dict[str, Callable[[], bool]] = {hint: throttle.ask for hint, throttle in self._throttles.items()}
        hints[Hint.ALIVE] = self._vouches
        self._server = HintServer(ClusterKeys(core, asyncio.get_running_loop()), resolved.bind, hints)
        port = self._server.address.rpartition(":")[2]
        self.endpoint = HintEndpoint(address=host_and_port(resolved.advertise, port), nonce=self._server.identity)

    def listen(self, agent: Agent) -> None:
        """Pass hints to `agent` from now on."""
        is_first, self._agent = self._agent is None, agent
        if is_first:
            self._server.start()

    def close(self) -> None:
        self._server.close()
        for throttle in self._throttles.values():
            throttle.cancel()

    def _vouches(self) -> bool:
        return self._agent is not None and self._agent.member.vouches()

    @property
    def _current_agent(self) -> Agent:
        assert self._agent is not None, "it listens once there is one"
        return self._agent


class ClusterKeys(KeyCache):
    """The cluster's keys for the server's threads, read in the agent's loop."""

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lambda: asyncio.run_coroutine_threadsafe(rpc_keys(core), loop).result())
        self.encrypted = core.settings.encrypt
