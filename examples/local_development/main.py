"""The same calls on a laptop as on a cluster: actors, a worker pool and jobs, without any set-up.

    python examples/local_development/main.py                                      # on a private cluster
    FRAY_CLUSTER_SPEC=gs://bucket/fray python examples/local_development/main.py    # the same on that cluster

Worker pools and servers need storage. On Ray, run agents as jobs there (docs/backends.md), and name their root.
"""

from __future__ import annotations

from fray.actor import ActorHandle
from fray.client import StorageClient, wait_all
from fray.cluster import Cluster, ClusterResolver, current_cluster
from fray.pool import WorkerPool
from fray.rpc import ActorContext, ActorServer
from fray.types import Entrypoint, JobRequest, ResourceConfig


class EchoModel:
    """A stand-in for a model that needs an accelerator."""

    def predict(self, ctx: ActorContext, prompts: list[str]) -> list[str]:
        return [f"Response to: {prompt}" for prompt in prompts]


class Counter:
    """One of several servers under the same name."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0

    def increment(self, ctx: ActorContext) -> int:
        self.count += 1
        return self.number


class Totals:
    """An actor in a job of its own, called through its handle."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total


def inference(cluster: Cluster) -> list[str]:
    """A server in this process, found by its name."""
    server = ActorServer(cluster)
    server.register("inference", EchoModel())
    server.serve_background()
    try:
        pool = ClusterResolver(cluster).lookup("inference")
        pool.wait_for_size(1)
        answers: list[str] = pool.call().predict(["Hello", "World"])
        return answers
    finally:
        server.shutdown()


def broadcast(cluster: Cluster) -> list[int]:
    """Two servers, and one call to both."""
    servers = [ActorServer(cluster) for _ in range(2)]
    try:
        for number, server in enumerate(servers, start=1):
            server.register("counters", Counter(number))
            server.serve_background()
        pool = ClusterResolver(cluster).lookup("counters")
        pool.wait_for_size(2)
        return sorted(future.result() for future in pool.broadcast().increment())
    finally:
        for server in servers:
            server.shutdown()


def double(number: int) -> int:
    """A task of the worker pool."""
    return number * 2


def worker_pool(cluster: Cluster) -> list[int]:
    """Jobs that run functions."""
    with WorkerPool(cluster, num_workers=2, resources=ResourceConfig.with_cpu(0.5)) as pool:
        return [future.result() for future in pool.map(double, [1, 2, 3, 4, 5])]


def jobs_and_an_actor(cluster: Cluster) -> int:
    """Jobs that get the handle of one actor and call it."""
    client, small = StorageClient(cluster), ResourceConfig.with_cpu(0.5)
    group = client.create_actor_group(Totals, name="totals", count=1, resources=small)
    try:
        (totals,) = group.handles
        jobs = [
            client.submit(JobRequest(f"part-{n}", Entrypoint.from_callable(send, (totals, n)), small))
            for n in range(1, 4)
        ]
        wait_all(jobs)
        total: int = totals.add(0)
        return total
    finally:
        group.shutdown()


def send(totals: ActorHandle[Totals], amount: int) -> None:
    """The function of each job."""
    totals.add(amount)


def main() -> None:
    with current_cluster() as cluster:
        print(*inference(cluster))
        print(*broadcast(cluster))
        print(*worker_pool(cluster))
        print(jobs_and_an_actor(cluster))


if __name__ == "__main__":
    main()
