"""Ray's side of the pool bench: each line is a number of no-op tasks; the answer is the seconds they took together.

"1 N" asks for N tasks one after the other instead; the answer is the list of their round trips.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time

os.environ["RAY_AUTH_MODE"] = "disabled"  # or it leaves a token in the home directory

import ray


@ray.remote
def nothing(number: int) -> int:
    return number


def together(count: int) -> float:
    begun = time.monotonic()
    ray.get([nothing.remote(number) for number in range(count)])
    return time.monotonic() - begun


def one_by_one(count: int) -> list[float]:
    taken = []
    for number in range(count):
        begun = time.monotonic()
        ray.get(nothing.remote(number))
        taken.append(time.monotonic() - begun)
    return taken


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # Ray prints to stdout
    os.dup2(2, 1)
    directory = tempfile.mkdtemp(prefix="ray-")
    begun = time.monotonic()
    ray.init(include_dashboard=False, _temp_dir=directory, log_to_driver=False)
    together(100)
    print(json.dumps({"version": ray.__version__, "start_s": time.monotonic() - begun}), file=answers, flush=True)
    try:
        for line in sys.stdin:
            one, _, many = line.strip().rpartition(" ")
            print(json.dumps(one_by_one(int(many)) if one else together(int(many))), file=answers, flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


main()
