"""One program for every backend: five workloads, with the client and the context that the environment selects.

Each line of input names a workload and a folder to write to; the answer is its seconds. Only FRAY_CLUSTER_SPEC differs
between backends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
from zephyr_pipeline import context, trivial

from fray import JobRequest, current_client
from fray.client import Client
from fray.cluster import current_replica
from fray.job import create_job_ctx
from fray.types import Entrypoint, ResourceConfig

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORKERS = 4
"""Workers, actors and replicas: as many as each backend has cores."""

TASKS, CALLS, SHARDS, PROMPTS = 1_000, 10_000, 200, 2_000


def square(number: int) -> int:
    return number * number


class Model:
    """An actor that answers at once, so that only the calls are measured."""

    def __init__(self) -> None:
        self.calls = 0

    def answer(self, prompt: str) -> str:
        self.calls += 1
        return prompt.upper()


def tasks(client: Client, folder: Path, share: float) -> None:
    count = int(TASKS * share)
    with create_job_ctx("auto", max_workers=WORKERS) as tasks:
        assert tasks.get([tasks.run(square, number) for number in range(count)]) == [n * n for n in range(count)]


def actor(client: Client, folder: Path, share: float) -> None:
    with client.create_actor(Model, name="model") as model:
        for _ in range(int(CALLS * share)):
            assert model.answer("a") == "A"


def pipeline(client: Client, folder: Path, share: float) -> None:
    results = context(client, WORKERS, folder / "chunks").execute(trivial(int(SHARDS * share))).results
    assert len(list(results)) == int(SHARDS * share)


def inference(client: Client, folder: Path, share: float) -> None:
    with client.create_actor_group(Model, name="pool", count=WORKERS) as group:
        ready = group.wait_ready()
        futures = [ready[n % WORKERS].answer.remote(f"prompt {n}") for n in range(int(PROMPTS * share))]
        assert all(future.result().startswith("PROMPT") for future in futures)


def meet(folder: str) -> None:
    """Return once all replicas have arrived."""
    Path(folder, str(current_replica().index)).touch()
    while len(list(Path(folder).iterdir())) < current_replica().count:
        time.sleep(0.01)


def gang(client: Client, folder: Path, share: float) -> None:
    entrypoint = Entrypoint.from_callable(meet, args=(str(folder),))
    client.submit(JobRequest("gang", entrypoint, ResourceConfig(cpu=1), replicas=WORKERS)).wait()


WORKLOADS: dict[str, Callable[[Client, Path, float], None]] = {
    "tasks": tasks,
    "actor": actor,
    "pipeline": pipeline,
    "inference": inference,
    "gang": gang,
}


def main() -> None:
    client = current_client()
    say({"client": type(client).__name__})
    for line in sys.stdin:
        name, folder, share = json.loads(line)
        begun = time.monotonic()
        WORKLOADS[name](client, Path(folder), share)
        say({"seconds": time.monotonic() - begun})
    client.shutdown()


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    ANSWERS, sys.stdout = sys.stdout, sys.stderr  # the output of tasks must not mix with the answers
    main()
