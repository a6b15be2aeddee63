"""Roots at which another cluster is for a while, or none: somebody moves a root away and makes a new one, or empties
it; then the old root comes back.

For those at work, that was an outage: they have done nothing in the other cluster.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from fray_coordinator.protocol.cluster_identity import CONFIRMED_SECONDS
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.interface import Object
from fray_coordinator.store.memory import MemoryContents, digest
from fray_layouts import codec
from fray_layouts.object_keys import CLUSTER_KEY, AgentKeys, JobKeys, PoolKeys
from fray_layouts.records import AgentRecord, ClusterSettings, Doorbell, JobRecord, Record
from fray_layouts.spec_parsing import parse_spec
from tests.simulation.clocks import EPOCH
from tests.simulation.invariants import DRIFT, Broken
from tests.simulation.loop import Participant
from tests.simulation.stage import Stage

SHARE = 0.3
"""Share of the seeds in which this happens."""

AFTER_A_CONFIRMATION = CONFIRMED_SECONDS / DRIFT
"""Virtual seconds for which somebody who has just confirmed the root may write without doing it again."""

JOB = "strange-1m8hw24fkwmtyea-9s0r1b1k"


class StrangeRoots:
    """What happens to the root of one world.

    Args:
        lasts: virtual seconds from now within which it happens.
        noted: called with the begin and the end of each time without the cluster.
    """

    def __init__(self, world: Stage, lasts: float, noted: Callable[[float, float], None]) -> None:
        self.world = world
        self.noted = noted
        self.draw = random.Random(f"strange roots {world.seed_number}")
        world.storage.on_strange_write = self._written
        if self.draw.random() < SHARE:
            for _ in range(self.draw.randint(1, 3)):
                world.later(self.draw.uniform(0, lasts), self._turn)

    def _turn(self) -> None:
        storage, now = self.world.storage, self.world.loop.now
        if storage.strange is None and self.world.stormy and now >= storage.down_until:
            how_long = self.draw.choice([20.0, 60.0, 200.0, 400.0]) * self.draw.uniform(0.5, 1)
            kind, contents = self.draw.choice([("nothing", MemoryContents()), ("another cluster", self._cluster())])
            self.world.note("storage", f"holds {kind}", f"for {how_long:.1f} s")
            storage.faults[f"the root held {kind}"] += 1
            storage.turn_to(contents)
            self.noted(now, now + how_long)
            self.world.later(how_long, self._turn_back, contents)

    def _turn_back(self, contents: MemoryContents) -> None:
        if self.world.storage.strange is contents:
            self.world.note("storage", "holds the cluster again")
            self.world.storage.turn_to(None)

    def _cluster(self) -> MemoryContents:
        """Another cluster, in which a job waits whose submitter has rung, and an agent has just joined."""
        now = EPOCH + self.world.loop.now
        spec = parse_spec({"name": "strange", "entrypoint": {"command": ["simulated"]}})
        job = JobRecord(id=JOB, spec=spec, status="pending", submitted_at=now)
        agent = AgentRecord(id="strange", host="strange", pool="default", interval=5.0)
        found: dict[str, Record] = {
            CLUSTER_KEY: ClusterSettings(cluster_id="strange", addresses=[self.world.storage.backend.root]),
            JobKeys.key(JOB): job,
            entry_of(job).key(): Doorbell(),
            AgentKeys.key(agent.id): agent,
            PoolKeys.doorbell("default"): Doorbell(rung_at=now, cluster="strange"),
        }
        contents = MemoryContents()
        for key, record in found.items():
            body = codec.encode(record)
            contents.set(key, Object(body, digest(body), now))
        return contents

    def _written(self, key: str, sender: Participant, sent: float) -> None:
        """Check a change of the other cluster, or of the empty root."""
        since = self.world.storage.strange_since
        if sender not in self.world.connections or sent < since:
            return
        self.world.note(sender.name, "writes in the other root", key)
        if sent - since > AFTER_A_CONFIRMATION or key == JobKeys.key(JOB):
            message = f"{sender} writes {key} {sent - since:.1f} s after another cluster, or none, came to the root"
            self.world.is_broken(Broken("nobody works in another cluster", message, sender.name))
