"""Ray's side of the creation bench: each line read creates an actor and calls it; the answer is its seconds."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time

os.environ["RAY_AUTH_MODE"] = "disabled"  # or it leaves a token in the home directory

import ray


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def create_and_call(cls: ray.actor.ActorClass) -> float:
    """Seconds from the creation to the answer of the first call."""
    begun = time.monotonic()
    actor = cls.remote()
    if ray.get(actor.add.remote()) != 1:
        raise RuntimeError("not a new actor")
    taken = time.monotonic() - begun
    ray.kill(actor)
    return taken


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # Ray prints to stdout
    os.dup2(2, 1)
    directory = tempfile.mkdtemp(prefix="ray-")
    begun = time.monotonic()
    ray.init(include_dashboard=False, _temp_dir=directory, log_to_driver=False)
    cls = ray.remote(num_cpus=0)(Counter)
    print(json.dumps({"version": ray.__version__, "start_s": time.monotonic() - begun}), file=answers, flush=True)
    try:
        for _ in sys.stdin:
            print(json.dumps(create_and_call(cls)), file=answers, flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


main()
