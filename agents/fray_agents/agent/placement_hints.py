"""Hints from one agent to another: that placements have changed, or the question whether it is alive.

A lost hint costs time only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from fray_agents.rpc.client.connect import Target
from fray_agents.rpc.errors import ServerGone
from fray_agents.rpc.hints import send_hint
from fray_agents.rpc.wire.session import Keyring
from fray_coordinator.background import start_task
from fray_coordinator.jobs.gang_peers import PeerAnswer
from fray_layouts.errors import FrayError
from fray_layouts.records import HintEndpoint
from fray_layouts.states import Hint

log = logging.getLogger("fray")

ANSWER_PATIENCE = 2.0
"""Seconds to wait for an agent's answer: one that is alive and reachable answers within milliseconds."""


class PlacementHints:
    """Sends hints in threads, without blocking the caller.

    keyring: the keys that authenticate them.
    """

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._running: dict[str, asyncio.Task[None]] = {}
        self._resend: set[str] = set()

    def send(self, endpoints: Collection[HintEndpoint]) -> None:
        """Make the agents there read their placements; if a hint to one is under way, another follows it."""
        for endpoint in endpoints:
            running = self._running.get(endpoint.nonce)
            if running is None or running.done():
                self._running[endpoint.nonce] = start_task(self._send(endpoint))
            else:
                self._resend.add(endpoint.nonce)
        self._running = {nonce: task for nonce, task in self._running.items() if not task.done()}

    async def ask(self, endpoint: HintEndpoint) -> PeerAnswer:
        """Whether the agent there is alive and vouches for its replicas: it accepts a hint that asks this."""
        return await self._deliver(endpoint, Hint.ALIVE)

    async def _deliver(self, endpoint: HintEndpoint, hint: Hint) -> PeerAnswer:
        target = Target("agent", endpoint.address, identity=endpoint.nonce)
        try:
            async with asyncio.timeout(ANSWER_PATIENCE):
                await asyncio.to_thread(send_hint, target, self._keyring, hint)
        except ServerGone:
            return PeerAnswer.GONE
        except (FrayError, OSError, RuntimeError) as error:  # RuntimeError: the interpreter ends, and starts no threads
            log.debug("no hint reached an agent: %s", error)
            return PeerAnswer.SILENT
        return PeerAnswer.LIVES

    def close(self) -> None:
        """Stop sending hints."""
        for task in self._running.values():
            task.cancel()

    async def _send(self, endpoint: HintEndpoint) -> None:
        """Send the hint, and again if something changed meanwhile: the agent may have read before the change."""
        await self._deliver(endpoint, Hint.PLACEMENTS)
        while endpoint.nonce in self._resend:
            self._resend.discard(endpoint.nonce)
            await self._deliver(endpoint, Hint.PLACEMENTS)


async def nobody_answers(endpoint: HintEndpoint) -> PeerAnswer:
    """The answer of every agent for callers that send no hints."""
    return PeerAnswer.SILENT
