"""The peers' side of the queues bench: each line of input names a peer, a folder and a count; the answer is two times.

All items are produced first; then one consumer takes and acknowledges them.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

MESSAGE = {"task": "square", "args": [1, 2, 3], "text": "hello" * 4}


class Huey:
    """huey's storage, the base of its task queue; a message is removed when it is taken."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def push(self) -> None:
        self._storage.enqueue(pickle.dumps(MESSAGE))

    def pop_and_acknowledge(self) -> None:
        pickle.loads(self._storage.dequeue())


class Persistent:
    """persist-queue with acknowledgements."""

    def __init__(self, queue: Any, acknowledge: Callable[[Any], None]) -> None:
        self._queue, self._acknowledge = queue, acknowledge

    def push(self) -> None:
        self._queue.put(MESSAGE)

    def pop_and_acknowledge(self) -> None:
        self._acknowledge(self._queue.get())


class Naive:
    """An object for each item: list, claim the oldest by exclusive create, read, delete. Nothing is synced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def push(self) -> None:
        (self._folder / f"{time.time_ns():020d}-{uuid.uuid4().hex}").write_bytes(pickle.dumps(MESSAGE))

    def pop_and_acknowledge(self) -> None:
        names = sorted(os.listdir(self._folder))
        taken = set(names)
        name = next(name for name in names if not name.endswith(".lease") and f"{name}.lease" not in taken)
        os.close(os.open(self._folder / f"{name}.lease", os.O_CREAT | os.O_EXCL))
        pickle.loads((self._folder / name).read_bytes())
        os.unlink(self._folder / name)
        os.unlink(self._folder / f"{name}.lease")


def opened(peer: str, folder: Path) -> Any:
    """The peer, on an empty folder."""
    from huey.storage import FileStorage, SqliteStorage
    from persistqueue import Queue, SQLiteAckQueue

    match peer:
        case "huey-sqlite":
            return Huey(SqliteStorage(filename=str(folder / "huey.db")))
        case "huey-sqlite-synced":
            return Huey(SqliteStorage(filename=str(folder / "huey.db"), fsync=True))
        case "huey-file":
            return Huey(FileStorage("bench", path=str(folder / "huey")))
        case "persist-queue-sqlite":
            queue = SQLiteAckQueue(str(folder / "persist"), auto_commit=True)
            return Persistent(queue, queue.ack)
        case "persist-queue-file":
            files = Queue(str(folder / "persist"), autosave=False)
            return Persistent(files, lambda item: files.task_done())
    return Naive(folder / "naive")


def timed(times: int, act: Callable[[], None]) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        act()
    return time.perf_counter() - begun


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        queue = opened(wanted["peer"], Path(wanted["folder"]))
        produced = timed(wanted["count"], queue.push)
        consumed = timed(wanted["consume"], queue.pop_and_acknowledge)
        print(json.dumps([produced, consumed]), flush=True)


if __name__ == "__main__":
    main()
