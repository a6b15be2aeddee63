"""Processes that write to one store at once. As a program, it waits for a line of input before it starts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence

from fray_coordinator.clock import system_random
from fray_coordinator.store.interface import (
    ABSENT,
    Applied,
    Object,
    Rejected,
    Superseded,
)
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.store import Store

REMEMBERED = 40
"""Operations that a record remembers: more than there are writers, so that none is forgotten while its outcome is
unknown."""


def record(count: int, op: str, recent_ops: Sequence[str] = ()) -> bytes:
    return json.dumps({"count": count, "op": op, "recent_ops": list(recent_ops), "created_op": "created"}).encode()


async def create_counter(store: Store, key: str) -> None:
    assert isinstance(await store.put(key, record(0, "created"), ABSENT, op="created"), Applied)


async def read_count(store: Store, key: str) -> int:
    found = await store.get(key)
    assert found is not None
    count: int = json.loads(found.data)["count"]
    return count


async def increment(store: Store, key: str, writer: str, times: int) -> None:
    """Add one to the counter `times` times, each exactly once."""
    current = await store.get(key)
    for number in range(times):
        current = await _increment_once(store, key, f"{writer}.{number}", current)


async def _increment_once(store: Store, key: str, op: str, current: Object | None) -> Object | None:
    while True:
        assert current is not None, "nobody deletes the counter"
        before = json.loads(current.data)
        data = record(before["count"] + 1, op, [*before["recent_ops"], before["op"]][-REMEMBERED:])
        match await store.put(key, data, current.version, op=op):
            case Applied(version):
                return Object(data, version, 0)
            case Superseded(now):
                return now
            case Rejected(now):
                current = now


async def create(store: Store, key: str, writer: str, times: int) -> list[str]:
    """Try to create `times` names below `key`; return the names that this process created."""
    won = []
    for number in range(times):
        outcome = await store.put(f"{key}/{number:03}", writer.encode(), ABSENT)
        if isinstance(outcome, Applied):
            won.append(f"{key}/{number:03}")
    return won


JOBS = {"increment": increment, "create": create}


async def work(store: Store, job: str, key: str, times: int, writers: Sequence[str]) -> list[str]:
    results = await asyncio.gather(*(JOBS[job](store, key, writer, times) for writer in writers))
    return [name for result in results for name in result or ()]


def work_in_processes(root: str, job: str, key: str, times: int, writers: Sequence[str], processes: int) -> list[str]:
    """Run `work` in several processes that start at the same moment."""
    command = [sys.executable, "-m", "tests.support.writers", root, job, key, str(times)]
    shares = [[*command, *writers[share::processes]] for share in range(processes)]
    running = [subprocess.Popen(share, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for share in shares]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    return [name for answer in answers for name in json.loads(answer)]


async def main(root: str, job: str, key: str, times: str, *writers: str) -> None:
    store = await open_store(root, rng=system_random())
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(await work(store, job, key, int(times), writers)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
