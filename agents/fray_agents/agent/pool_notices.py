"""What tells an agent early that something changed: the bell and the plan of its pool, and hints from other agents.

A lost hint costs time only. Agents tell each other that placements have changed, or ask whether the other is alive.

The bell of a pool says whether there is a new job in the index, or a new plan of placements. An agent reads it often
and cheaply, but more rarely in a large fleet, where some agent always polls soon.

The pool's plan says which owners of placements an agent should read; the pass writes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fray_agents.agent.membership import Membership
from fray_coordinator.concurrency import start_task
from fray_coordinator.jobs.gang_peers import PeerAnswer
from fray_coordinator.store.interface import NotModified, Version
from fray_layouts import codec
from fray_layouts.errors import FrayError, Malformed
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import Doorbell, HintEndpoint, PoolPlan
from fray_layouts.states import Hint
from fray_rpc.client.connect import Target
from fray_rpc.errors import ServerGone
from fray_rpc.hints import send_hint
from fray_rpc.wire.session import Keyring

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


@dataclass(slots=True)
class PoolBell:
    """One agent's view of the doorbell.

    Attributes:
        member: the agent's membership.
        on_ring: called when it has rung, for whatever reason.
        rang_for_jobs: it has rung since the index was last listed, and not only because of a new plan.
    """

    member: Membership
    on_ring: Callable[[], None]
    rang_for_jobs: bool = False
    _version: Version | None = None

    async def poll(self) -> None:
        """Read the doorbell; if that fails, the index and the plan are still read on the repair interval."""
        answer = None
        with self.member.problems.tolerated("read the doorbell"):
            answer = await self.member.core.store.get_if_changed(
                PoolKeys.doorbell(self.member.record.pool), self._version, patience=0.0
            )
            self._version = None if answer is None else self._version  # or each poll would confirm the root
        if answer is None or isinstance(answer, NotModified):
            return
        bell = _bell(answer.data)
        if bell.cluster != self.member.core.settings.cluster_id:
            self.member.core.store.suspect_root()
        self.rang_for_jobs |= self._version is None or bell.replaces != self._version
        self._version = answer.version
        self.on_ring()


def _bell(data: bytes) -> Doorbell:
    """The bell; an empty one, which is a ring for jobs, if anything else lies there."""
    try:
        return codec.decode(data, Doorbell).record
    except Malformed:
        return Doorbell()


RETRY_POLLS = 5
"""Poll intervals after which a failed read of the plan is repeated: as rare as an idle agent's polls for work."""


@dataclass(slots=True)
class PlanReader:
    """Reads the plan when the pool's doorbell has rung, and on the repair interval, because a ring may be lost.

    due_at: boot time of the next read.
    """

    member: Membership
    due_at: float = 0.0
    _version: Version | None = None

    async def read(self) -> list[str]:
        """The keys of the owners that the agent should read; [] if the plan has not changed, or there is none."""
        core, begun = self.member.core, self.member.core.clock.boottime()
        again = self.due_at = begun + core.jittered(RETRY_POLLS * core.settings.poll_interval)
        answer = await core.store.get_if_changed(PoolKeys.plan(self.member.record.pool), self._version, patience=0.0)
        if self.due_at == again:  # the doorbell did not ring meanwhile
            self.due_at = begun + core.jittered(core.settings.repair_interval)
        if isinstance(answer, NotModified):
            return []
        self._version = None if answer is None else answer.version
        if answer is None:
            return []
        try:
            return codec.decode(answer.data, PoolPlan).record.owners.get(self.member.id, [])
        except Malformed as error:
            self.member.problems.warnings.warn("%s is not a plan: %s", PoolKeys.plan(self.member.record.pool), error)
            return []
