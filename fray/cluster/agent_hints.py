"""Hints to agents: messages about changes that they would otherwise find in the storage a little later.

A lost hint costs only that delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from fray_coordinator.concurrency import start_task
from fray_coordinator.core import Core
from fray_layouts.errors import FrayError
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys
from fray_layouts.records import AgentRecord, HintEndpoint, PoolSummary, ReconcilerRecord
from fray_layouts.states import Hint

if TYPE_CHECKING:
    from fray_rpc import Keyring

log = logging.getLogger("fray")

TARGETS_TTL = 60.0
"""Seconds until the list of agents is read again: one read a minute, however much is submitted."""

NO_TARGETS_TTL = 5.0
"""The same while the list is empty. The reconciler's next pass lists an agent a few seconds after it has joined."""


class HintSender:
    """Sends one process's hints to the agents of one cluster.

    keyring: returns the keys that authenticate hints; called when the first hint is sent.
    """

    def __init__(self, keyring: Callable[[], Keyring]) -> None:
        self._keyring = keyring
        self._pools: dict[str, PoolSummary] = {}
        self._pass: HintEndpoint | None = None
        self._read_at = float("-inf")

    def submitted(self, core: Core, pools: Iterable[str]) -> None:
        """Send a hint to a few agents of these pools that there is work; returns at once."""
        self._begin(self._send_to_pools(core, pools))

    def gathered(self, core: Core) -> None:
        """Send a hint to the reconciler that there is a gang or a reservation to gather; returns at once."""
        self._begin(self._send_to_reconciler(core))

    def stopped(self, core: Core, agent: str) -> None:
        """Send a hint to an agent that a job that it runs is to be stopped; returns at once."""
        self._begin(self._send_to_agent(core, agent))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        start_task(self._quietly(work))

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (FrayError, OSError, RuntimeError) as error:  # RuntimeError: an exiting interpreter starts no threads
            log.debug("a hint could not be sent: %s", error)
            self._read_at = float("-inf")

    async def _send_to_pools(self, core: Core, pools: Iterable[str]) -> None:
        await self._find_targets(core)
        endpoints = [endpoint for pool in pools for endpoint in self._pools.get(pool, PoolSummary()).hint_endpoints]
        await asyncio.gather(*(self._quietly(self._send(endpoint, Hint.SUBMITTED)) for endpoint in endpoints))

    async def _send_to_reconciler(self, core: Core) -> None:
        await self._find_targets(core)
        if self._pass is not None:
            await self._send(self._pass, Hint.PLACEMENTS)

    async def _find_targets(self, core: Core) -> None:
        now = core.clock.boottime()
        if now - self._read_at > (
            TARGETS_TTL if any(view.hint_endpoints for view in self._pools.values()) else NO_TARGETS_TTL
        ):
            self._read_at = now
            found = await core.records.read(CoordinatorKeys.reconciler, ReconcilerRecord)
            self._pools = found.record.pools if found is not None else {}
            self._pass = found.record.hint_endpoint if found is not None else None

    async def _send_to_agent(self, core: Core, agent: str) -> None:
        found = await core.records.read(AgentKeys.key(agent), AgentRecord)
        if found is not None and found.record.hint_endpoint is not None:
            await self._send(found.record.hint_endpoint, Hint.STOPPED)

    async def _send(self, hint_endpoint: HintEndpoint, hint: Hint) -> None:
        await asyncio.to_thread(self._call, hint_endpoint, hint)

    def _call(self, hint_endpoint: HintEndpoint, hint: Hint) -> None:
        # Imported late: most programs that submit jobs make no calls.
        from fray_rpc.client.connect import Target
        from fray_rpc.hints import send_hint

        send_hint(Target("agent", hint_endpoint.address, identity=hint_endpoint.nonce), self._keyring(), hint)
