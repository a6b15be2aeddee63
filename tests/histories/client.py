"""A client that puts, gets and deletes at random, and records its calls and their answers.

As a program, it is one of several processes on one root, and waits for a line of input before it starts. Its diary is a
file of JSON lines, one before each call and one after it, so that a call is known even if the process was killed in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from fray_coordinator.clock import RandomSource, SystemClock
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.store.interface import (
    ABSENT,
    Applied,
    AttemptFailed,
    NameAbsent,
    Object,
    Outcome,
    Rejected,
    Superseded,
)
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.store import Store
from tests.histories.calls import Call
from tests.support.faults import FaultyBackend, Plan

REMEMBERED = 60
"""Operations that a record remembers: more than can be written while the outcome of one of them is unknown."""
PATIENCE = 0.15
"""Seconds: enough for one more try, so that some calls end without an answer."""

Diary = Callable[[Call], object]


class Client:
    """One of several clients on the same names. It also deletes names that begin with "mortal"."""

    def __init__(self, store: Store, name: str, keys: list[str], rng: random.Random, diary: Diary) -> None:
        self._store = store
        self._name = name
        self._keys = keys
        self._rng = rng
        self._diary = diary
        self._number = 0
        self._seen: dict[str, Object | None] = {}

    async def act(self) -> None:
        """Make one call."""
        key = self._rng.choice(self._keys)
        seen = self._seen.get(key)
        dice = self._rng.random()
        if key not in self._seen or dice < 0.3:
            await self._get(key)
        elif seen is not None and key.startswith("mortal") and dice < 0.5:
            await self._delete(key, seen)
        else:
            await self._put(key, seen)

    async def _get(self, key: str) -> None:
        call = self._begin("get", key, None, None)
        try:
            found = await self._store.get(key)
        except StoreUnavailable:
            return
        self._end(call, "found", found)

    async def _put(self, key: str, seen: Object | None) -> None:
        op = f"{self._name}.{self._number}"
        call = self._begin("put", key, value_of(seen), op)
        data = _record(op, seen)
        try:
            outcome = await self._store.put(key, data, seen.version if seen else ABSENT, op=op)
        except StoreUnavailable:
            del self._seen[key]
            return
        self._end(call, *_answer(outcome, data))

    async def _delete(self, key: str, seen: Object) -> None:
        call = self._begin("delete", key, value_of(seen), None)
        try:
            outcome = await self._store.delete(key, seen.version)
        except StoreUnavailable:
            del self._seen[key]
            return
        self._end(call, *(("gone", None) if isinstance(outcome, NameAbsent) else ("rejected", outcome.current)))

    def _begin(self, verb: str, key: str, expect: str | None, value: str | None) -> Call:
        call = Call(self._name, self._number, verb, key, expect, value, time.monotonic())
        self._number += 1
        self._diary(call)
        return call

    def _end(self, call: Call, outcome: str, now: Object | None) -> None:
        call.returned, call.outcome, call.current = time.monotonic(), outcome, value_of(now)
        self._seen[call.key] = now
        self._diary(call)


def value_of(found: Object | None) -> str | None:
    return None if found is None else json.loads(found.data)["op"]


def _answer(outcome: Outcome, data: bytes) -> tuple[str, Object | None]:
    match outcome:
        case Applied(version):
            return "applied", Object(data, version, 0)
        case Superseded(current):
            return "superseded", current
        case Rejected(current):
            return "rejected", current


def _record(op: str, seen: Object | None) -> bytes:
    before = json.loads(seen.data) if seen else {"recent_ops": [], "created_op": op}
    recent = [*before["recent_ops"], before["op"]][-REMEMBERED:] if seen else []
    return json.dumps({"op": op, "recent_ops": recent, "created_op": before["created_op"]}).encode()


async def main(root: str, name: str, keys: list[str], calls: int, rate: float, diary: Path) -> None:
    rng = random.Random(name)
    clock = SystemClock()
    backend = open_backend(root, clock)
    with suppress(AttemptFailed):
        await backend.get("nothing")  # connect first, so that it begins with the others
    if rate:
        backend = FaultyBackend(backend, Plan(rate, held_back=2, seed=rng.getrandbits(32)), clock)
    store = Store(backend, clock, RandomSource(name), PATIENCE)
    print("ready", flush=True)
    sys.stdin.readline()
    with diary.open("wb", buffering=0) as lines:
        client = Client(store, name, keys, rng, lambda call: lines.write(msgspec.json.encode(call) + b"\n"))
        for _ in range(calls):
            await client.act()
    await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("name")
    parser.add_argument("diary", type=Path)
    parser.add_argument("--keys", nargs="+", required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    given = parser.parse_args()
    asyncio.run(main(given.root, given.name, given.keys, given.calls, given.rate, given.diary))
