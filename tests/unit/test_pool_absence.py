"""When a pool finds out why it lacks workers, and when it logs the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fray.cluster.log_printer import printer
from fray.cluster.storage import StorageCluster
from fray.pool import diagnosis
from fray.pool.diagnosis import AbsenceWatch
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobLease, JobRecord, Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.virtual import Cluster


class Explained:
    """A pool whose second worker is missing, with its own clock. It looks at its workers once a second.

    Attributes:
        why: the reason that an explanation finds.
        has_machines: whether the pool may have machines.
        asked_at: the seconds at which there was an explanation.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.why = "no room"
        self.has_machines = False
        self.asked_at: list[float] = []
        monkeypatch.setattr(diagnosis, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(diagnosis, "explain_absence", self._explain)
        self.watch = AbsenceWatch(cast(StorageCluster, self), "sums")

    def run(self, work: Callable[[None], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(work(None))

    async def scaler(self) -> SimpleNamespace:
        return SimpleNamespace(begin=lambda wait: None)

    async def _explain(self, core: None, jobs: Sequence[str], on_machines: Callable[[], None]) -> str:
        self.asked_at.append(self.now)
        if self.has_machines:
            on_machines()
        return self.why

    def observe_until(self, second: int) -> None:
        while self.now < second:
            self.watch.observe(1, ["worker-2"])
            printer.value.flush(200)
            self.now += 1.0


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Explained:
    return Explained(monkeypatch)


def test_the_reason_is_looked_for_at_intervals_that_double(pool: Explained) -> None:
    pool.observe_until(600)
    assert pool.asked_at == [2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_while_machines_are_made_it_is_looked_for_at_least_every_half_a_minute(pool: Explained) -> None:
    pool.has_machines = True
    pool.observe_until(100)
    assert pool.asked_at == [2, 4, 8, 16, 32, 62, 92]


def test_a_new_reason_is_logged_at_once_and_the_same_one_ever_more_rarely(
    pool: Explained, caplog: pytest.LogCaptureFixture
) -> None:
    pool.observe_until(3)
    pool.why = "no agent"
    pool.observe_until(20)
    begin = "pool sums: 1 of 2 workers are up"
    assert caplog.messages == [f"{begin}: no room", f"{begin}: no agent"]
    pool.observe_until(600)
    assert caplog.messages == [f"{begin}: no room", *[f"{begin}: no agent"] * 4]


async def test_a_worker_that_was_claimed_since_the_last_heartbeat_has_the_room_that_another_one_lacks(
    cluster: Cluster,
) -> None:
    core = await cluster.core()
    room = Resources(cpu=1000, memory=2**33, disk=2**33)
    live = AgentRecord(id="a", host="h", pool="default", interval=60.0, capacity=room, free=room)
    await core.records.write(AgentKeys.key("a"), AgentRecord, live, None)
    spec = parse_spec({"name": "w", "entrypoint": {"command": ["true"]}})
    claimed = JobRecord(id="w-1", spec=spec, status="running", lease=JobLease(agent="a", host="h", since=core.now()))
    for job in (claimed, JobRecord(id="w-2", spec=spec, status="pending", submitted_at=core.now())):
        await core.records.write(JobKeys.key(job.id), JobRecord, job, None)
    why = await diagnosis.explain_absence(core, ["w-1", "w-2"])
    assert "1 job there; cpu: 1 core wanted, 0 free" in why
