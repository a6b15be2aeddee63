"""Counts the words of real files with workers that take files from a queue; two workers are killed in between.

`python examples/wordcount/main.py [FOLDER]` counts the words of all .py files below FOLDER (default: those of Python's
asyncio), in four processes. The queues are in a temporary folder; FRAY_QUEUE_ROOT may name a bucket instead. The result
is compared with a count without workers. It needs no cluster, so it also runs on a node of Ray:
`ray job submit --working-dir examples -- python wordcount/main.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from fray.queue import FileQueue, UnknownLease

WORKERS, KILLED = 4, 2
LEASE = 2.0
"""Seconds until another worker takes the files of a killed one; each file takes milliseconds."""
WORD = re.compile(r"[a-z]+")
Counted = tuple[str, dict[str, int]]


def words(path: str) -> Counter[str]:
    return Counter(WORD.findall(Path(path).read_text(errors="replace").lower()))


def work(tasks: FileQueue[str], results: FileQueue[Counted], end: Connection) -> None:
    """Count file by file, until the other side closes `end`.

    The result is pushed before the file is acknowledged, so no result is lost, but one may come twice.
    """
    while not end.poll():
        with suppress(UnknownLease):  # it took too long, and another worker has the file
            for lease in tasks.pop_many(1, LEASE, wait=LEASE / 2):
                with lease:
                    results.push((lease.item, dict(words(lease.item))))
    tasks.close()
    results.close()


def gather(results: FileQueue[Counted], counts: dict[str, Counter[str]], files: int) -> None:
    """Take results until there is one for each file."""
    while len(counts) < files:
        for lease in results.pop_many(5, wait=60.0):
            with lease:
                path, counted = lease.item
                counts[path] = Counter(counted)


def kill(worker: BaseProcess) -> None:
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    print(f"killed worker {worker.pid}", flush=True)


def main(folder: Path, root: str) -> None:
    files = sorted(map(str, folder.rglob("*.py")))
    tasks: FileQueue[str] = FileQueue(f"{root}/tasks")
    results: FileQueue[Counted] = FileQueue(f"{root}/results")
    begun = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    end, end_here = spawn.Pipe(duplex=False)
    workers: list[BaseProcess] = [spawn.Process(target=work, args=(tasks, results, end)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    counts: dict[str, Counter[str]] = {}
    part = -(-len(files) // (KILLED + 1))
    for number in range(KILLED + 1):
        tasks.push_many(files[number * part : (number + 1) * part], batch=1)
        if number < KILLED:
            gather(results, counts, len(counts) + part // 3)
            kill(workers[number])
    gather(results, counts, len(files))
    total = sum(counts.values(), Counter())
    end_here.close()
    for worker in workers:
        worker.join()
    taken = time.monotonic() - begun
    tasks.close()
    results.close()
    if total != sum(map(words, files), Counter()):
        sys.exit("the result differs from the sequential one")
    killed = sum(worker.exitcode == -signal.SIGKILL for worker in workers)
    print(f"{total.total()} words in {len(files)} files, in {taken:.1f} s, by {WORKERS} workers of which {killed} died")
    print("most frequent:", ", ".join(f"{word} {times}" for word, times in total.most_common(8)))
    print("the same as counted without workers")


if __name__ == "__main__":
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(sysconfig.get_paths()["stdlib"]) / "asyncio"
    with tempfile.TemporaryDirectory(prefix="fray-wordcount-") as place:
        main(given, os.environ.get("FRAY_QUEUE_ROOT") or place)
