"""A queue's consumers as processes: `python -m tests.support.queues ROOT SECONDS THREADS` prints what they did.

Each thread takes items until none has come for SECONDS. The output is one JSON line: the finished items.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from fray.queue import FileQueue, UnknownLease


def start(root: str, seconds: float, threads: int) -> subprocess.Popen[str]:
    """Start a consumer process; it prints "ready" after its first look."""
    command = [sys.executable, "-m", "tests.support.queues", root, str(seconds), str(threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main(root: str, seconds: float, threads: int) -> None:
    done: list[Any] = []
    queue: FileQueue[Any] = FileQueue(root)
    queue.size()
    print("ready", flush=True)
    sys.stdin.readline()

    def consume() -> None:
        while leases := queue.pop_many(5, wait=seconds):
            lost: tuple[str, ...] = ()
            try:
                queue.done(leases)
            except UnknownLease as error:
                lost = error.leases
            done.extend(lease.item for lease in leases if lease.lease_id not in lost)

    working = [threading.Thread(target=consume) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    queue.close()
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
