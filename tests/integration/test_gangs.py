"""Gangs on agents that are processes: replicas that talk to one another, and the ways in which a gang ends."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from fray_coordinator.core import Core
from fray_coordinator.jobs.commit import stored_exits
from fray_coordinator.jobs.stopping import stop
from fray_layouts.records import JobRecord
from tests.support.agents import AgentProcess, agents, ended, job, launch, lines, quick_core
from tests.support.processes import is_alive
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

MEETING = """
import json, os, signal, socket, sys, time
me, all_of_us, attempt = int(os.environ["FRAY_REPLICA"]), int(os.environ["FRAY_REPLICAS"]), os.environ["FRAY_ATTEMPT"]
host, port = os.environ["FRAY_COORDINATOR"].rsplit(":", 1)
def note(what):
    with open(NOTES, "a") as file:
        file.write(f"{attempt} {me} {what} {os.getpid()}\\n")
def told(number, frame):
    note("told")
    sys.exit(9)
signal.signal(signal.SIGTERM, told)
if me == 0:
    listener = socket.create_server((host, int(port)))
    peers = [listener.accept()[0] for _ in range(all_of_us - 1)]
    names = sorted(int(peer.makefile().readline()) for peer in peers)
else:
    while True:
        try:
            peers = [socket.create_connection((host, int(port)))]
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    peers[0].sendall(f"{me}\\n".encode())
    names = None
note("met")
if int(attempt) < LAST:
    import select
    while True:  # works on until a connection breaks
        ready = select.select(peers, [], [], 0.1)[0]
        if ready and not ready[0].recv(1):
            sys.exit("a peer is gone")
        if FAILS == me:
            sys.exit("no more")
with open(os.environ["FRAY_RESULT"], "w") as file:
    json.dump([me, names], file)
"""
"""Replica 0 meets the others at the gang's port. Before attempt `LAST` each works on until one of them is gone."""


async def meet(core: Core, notes: Path, last: int = 1, fails: int = -1, replicas: int = 3, **spec: Any) -> str:
    """Submit the gang. `fails`: the replica that fails after all have met."""
    head = f"NOTES, LAST, FAILS = {str(notes)!r}, {last}, {fails}\n"
    return await launch(core, head + MEETING, replicas=replicas, **spec)


async def met(notes: Path, attempt: int, replicas: int = 3) -> dict[int, int]:
    """Wait until all replicas of the attempt have met. Returns their pids by replica."""

    async def look() -> dict[int, int] | None:
        noted = [line.split() for line in lines(notes)]
        found = {int(me): int(pid) for n, me, what, pid in noted if (int(n), what) == (attempt, "met")}
        return found if len(found) == replicas else None

    return await eventually(look)


def hosts_of(record: JobRecord, running: list[AgentProcess]) -> list[AgentProcess]:
    """The agents that run the gang's replicas."""
    members = {member.agent for member in record.placement.members} if record.placement is not None else set()
    return [agent for agent in running if agent.id in members]


async def test_the_replicas_of_a_gang_meet_at_its_port(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", 2):
            gang = await meet(core, tmp_path / "notes", replicas=4)
            done = await ended(core, gang)
            assert (done.status, done.attempt) == ("succeeded", 1), done.exit
            assert done.result is not None
            assert done.result.value == [0, [1, 2, 3]]
            left = await stored_exits(core, done)
            assert sorted(left) == [0, 1, 2, 3]
            assert [left[n].result.value[0] for n in sorted(left)] == [0, 1, 2, 3]  # type: ignore[union-attr]
            assert len({exit.agent for exit in left.values()}) == 2


async def test_a_replica_that_fails_ends_them_all_and_is_one_failure(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", 2):
            gang = await meet(core, tmp_path / "notes", last=2, fails=1, max_retries_failure=1)
            done = await ended(core, gang)
            assert (done.status, done.attempt, done.failures, done.preemptions) == ("succeeded", 2, 1, 0), done.exit


@pytest.mark.parametrize("how", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGTERM])
async def test_a_host_that_goes_is_no_failure_though_the_others_fail_by_it_at_once(tmp_path: Path, how: int) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", 3, cores=1) as running:
            spare = AgentProcess(core.root, tmp_path / "work", 1)
            try:
                gang = await meet(core, tmp_path / "notes", last=2)
                await met(tmp_path / "notes", 1)
                goes = hosts_of(await job(core, gang), [*running, spare])[-1]
                goes.send(signal.Signals(how))
                done = await ended(core, gang)
            finally:
                spare.kill()
            assert (done.status, done.attempt) == ("succeeded", 2), done.exit
            assert (done.failures, done.preemptions) == (0, 1)
            assert done.history[0].agent == goes.id


async def test_a_stopped_gang_has_ended_when_nothing_of_it_runs(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", 2):
            gang = await meet(core, tmp_path / "notes", last=9)
            pids = await met(tmp_path / "notes", 1)
            await stop(core, gang, "enough")
            done = await ended(core, gang)
            assert done.exit is not None
            assert (done.status, done.exit.message) == ("stopped", "enough")
            assert not any(is_alive(pid) for pid in pids.values())


async def test_a_gang_larger_than_the_cluster_waits_and_holds_up_nobody(tmp_path: Path) -> None:
    async with quick_core(tmp_path / "root") as core:
        with agents(core.root, tmp_path / "work", 1):
            gang = await meet(core, tmp_path / "notes", replicas=3)
            assert (await ended(core, await launch(core, "print(1)"))).status == "succeeded"
            assert (await job(core, gang)).status == "gathering"
            more = AgentProcess(core.root, tmp_path / "work", 1)
            try:
                assert (await ended(core, gang)).status == "succeeded"
            finally:
                more.kill()
