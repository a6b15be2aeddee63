"""Hints from one agent to another: that placements have changed, or just whether it lives. A lost one costs time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from fray_agents.rpc.client.connect import Target
from fray_agents.rpc.errors import ServerGone
from fray_agents.rpc.hints import send_hint
from fray_agents.rpc.wire.session import Keyring
from fray_coordinator.jobs.gang_peers import PeerAnswer
from fray_layouts.errors import FrayError
from fray_layouts.records import HintEndpoint

log = logging.getLogger("fray")

PLACEMENTS_HINT = "placements"
"""The hint: read the plan of the pool and the owners in it; whoever runs the pass looks at their members."""

ALIVE_HINT = "alive"
"""Taken by an agent that lives and vouches for its replicas of gangs; see `Membership.vouches`."""

ANSWER_PATIENCE = 2.0
"""Seconds that one waits for an agent's answer: one that lives and can be reached takes milliseconds."""


class PlacementHints:
    """Sends hints in threads, and keeps nobody waiting.

    keyring: the keys that authenticate them.
    """

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    def send(self, endpoints: Collection[HintEndpoint]) -> None:
        """Have the agents there look at their placements; one that is just being told is told once more after that."""
        for endpoint in endpoints:
            running = self._running.get(endpoint.nonce)
            if running is None or running.done():
                self._running[endpoint.nonce] = asyncio.create_task(self._send(endpoint))
            else:
                self._again.add(endpoint.nonce)
        self._running = {nonce: task for nonce, task in self._running.items() if not task.done()}

    async def ask(self, endpoint: HintEndpoint) -> PeerAnswer:
        """See whether the agent there lives and vouches for its replicas, by whether it takes a hint that asks so."""
        return await self._give(endpoint, ALIVE_HINT)

    async def _give(self, endpoint: HintEndpoint, hint: str) -> PeerAnswer:
        target = Target("agent", endpoint.address, identity=endpoint.nonce)
        try:
            async with asyncio.timeout(ANSWER_PATIENCE):
                await asyncio.to_thread(send_hint, target, self._keyring, hint)
        except ServerGone:
            return PeerAnswer.GONE
        except (FrayError, OSError, RuntimeError) as error:  # RuntimeError: the interpreter ends, and starts no threads
            log.debug("an agent was not told: %s", error)
            return PeerAnswer.SILENT
        return PeerAnswer.LIVES

    def close(self) -> None:
        """Send no more."""
        for task in self._running.values():
            task.cancel()

    async def _send(self, endpoint: HintEndpoint) -> None:
        """Tell an agent, who may have looked before what it is to be told of meanwhile."""
        await self._give(endpoint, PLACEMENTS_HINT)
        while endpoint.nonce in self._again:
            self._again.discard(endpoint.nonce)
            await self._give(endpoint, PLACEMENTS_HINT)


async def nobody_answers(endpoint: HintEndpoint) -> PeerAnswer:
    """The answer of every agent to one that sends no hints."""
    return PeerAnswer.SILENT
