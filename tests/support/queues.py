"""A queue's consumers as processes: `python -m tests.support.queues ROOT SECONDS THREADS` prints what they did.

Each thread takes items until none has come for SECONDS. The output is one JSON line: the finished items, and how many
claims were won and lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from fray.queue import FileQueue, UnknownLease
from fray_coordinator.queue import scanner
from fray_coordinator.queue.held_segment import ClaimLost, HeldSegment


def start(root: str, seconds: float, threads: int) -> subprocess.Popen[str]:
    """Start a consumer process; it prints "ready" after its first look."""
    command = [sys.executable, "-m", "tests.support.queues", root, str(seconds), str(threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _counting(claims: dict[str, int]) -> None:
    """Count all claims from now on."""
    for name in ("claim", "take_over"):
        real = getattr(scanner, name)

        async def counted(*given: Any, real: Any = real) -> Any:
            result = await real(*given)
            claims["won"] += isinstance(result, HeldSegment)
            claims["beaten"] += isinstance(result, ClaimLost)
            return result

        setattr(scanner, name, counted)
    at_once = scanner.claim_batch

    def counted_batch(*given: Any) -> Any:
        results = at_once(*given)
        claims["won"] += sum(isinstance(result, HeldSegment) for result in results.values())
        return results

    scanner.claim_batch = counted_batch  # type: ignore[assignment]


def main(root: str, seconds: float, threads: int) -> None:
    claims = {"won": 0, "beaten": 0}
    _counting(claims)
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
    print(json.dumps({"done": done, **claims}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
