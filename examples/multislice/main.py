"""Training on slices that come and go: a coordinator knows which slices take part, and has a barrier for each step.

Each slice computes a gradient on its share of the data. The barrier lets all slices continue with new weights once each
of them has sent its gradient. Slices join and leave at any step; the coordinator no longer waits for a slice that falls
silent. The model is linear, in numpy. Without `--root` everything runs on a private cluster; with it, on the agents
of that cluster. A slice whose host dies starts again elsewhere and joins again; so does the coordinator, which then
learns from the slices how far they are.

Slices find the coordinator through storage. On Ray, run agents as jobs there (docs/backends.md), and name their root.

Needs numpy, here and on the agents' hosts: `pip install '.[demo]'` in a clone.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fray.cluster import (
    ClusterResolver,
    Entrypoint,
    JobGroupConfig,
    JobId,
    JobRequest,
    LocalCluster,
    ResourceConfig,
    StorageCluster,
    current_cluster,
    open_cluster,
    storage_cluster,
)
from fray.rpc import ActorServer

TRUE_WEIGHTS = np.array([3.0, -1.0, 0.5, 2.0])
"""The weights that the data was made with, which training must find."""

NOT_A_MEMBER = "join first"


@dataclass(frozen=True)
class Config:
    """Options of the training.

    Attributes:
        early: slices at the start, for which the first step waits; one more joins at a third of the steps, and the
            first leaves at two thirds.
        patience: seconds for which the first step waits for them at most. If the coordinator and the last slice died
            together, both start anew at step 0, and the other slices have ended by then.
        pause: seconds by which each gradient is slowed down.
        rate: learning rate.
        silence: seconds after which the coordinator no longer waits for a silent slice.
    """

    steps: int = 300
    early: int = 2
    patience: float = 30.0
    pause: float = 0.0
    rate: float = 0.1
    silence: float = 3.0


class SliceCoordinator:
    """The members, and the weights at the current step. Calls wait for one another, each in a thread."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.step = 0
        self.weights = np.zeros_like(TRUE_WEIGHTS)
        self.seen: dict[str, float] = {}
        self.given: dict[str, np.ndarray] = {}
        self.began = time.monotonic()
        self.changed = threading.Condition()

    def join(self, name: str, step: int, weights: np.ndarray) -> tuple[int, np.ndarray]:
        """Join. A slice that is ahead of the coordinator tells it. Returns the step and the weights to start with."""
        with self.changed:
            if step > self.step:
                self.step, self.weights = step, weights
            self.seen[name] = time.monotonic()
            return self.step, self.weights

    def leave(self, name: str) -> None:
        """Leave."""
        with self.changed:
            self.seen.pop(name, None)
            self._advance()

    def barrier(self, name: str, step: int, gradient: np.ndarray) -> tuple[int, np.ndarray] | str:
        """Send a gradient, wait for the others; return the next step and its weights. Repeating it changes nothing."""
        with self.changed:
            if name not in self.seen:
                return NOT_A_MEMBER
            self.seen[name] = time.monotonic()
            if step == self.step:
                self.given[name] = gradient
            self._advance()
            while self.step == step:
                self.changed.wait(0.1)
                self.seen[name] = time.monotonic()
                self._drop_the_silent()
            return self.step, self.weights

    def status(self) -> tuple[int, list[str]]:
        """The step, and the members."""
        return self.step, sorted(self.seen)

    def _drop_the_silent(self) -> None:
        now = time.monotonic()
        for name in [name for name, seen in self.seen.items() if now - seen > self.config.silence]:
            print(f"{name} is no longer waited for", flush=True)
            del self.seen[name]
        self._advance()

    def _advance(self) -> None:
        """Take the step if all members have sent their gradients; the first step waits for the early slices."""
        waited = time.monotonic() - self.began >= self.config.patience
        together = self.step > 0 or len(self.seen) >= self.config.early or waited
        if together and self.given and self.seen.keys() <= self.given.keys():
            self.weights = self.weights - self.config.rate * np.mean(list(self.given.values()), axis=0)
            self.step += 1
            self.given.clear()
            self.changed.notify_all()


# --- the functions of the jobs


def coordinate(config: Config) -> None:
    server = ActorServer(current_cluster())
    server.register("slice_coordinator", SliceCoordinator(config), max_concurrency=32)
    server.serve()


def train(config: Config, number: int, until: int) -> tuple[int, np.ndarray]:
    """Run one slice until a step; return the last step and weights that it has seen."""
    name = f"slice-{number}"
    cluster = current_cluster()
    coordinator = ClusterResolver(cluster).wait_for_actor("slice_coordinator").call(idempotent=True)
    inputs = np.random.default_rng(number).normal(size=(200, len(TRUE_WEIGHTS)))
    targets = inputs @ TRUE_WEIGHTS
    step, weights = coordinator.join(name, 0, np.zeros_like(TRUE_WEIGHTS))
    while step < until:
        time.sleep(config.pause)
        gradient = inputs.T @ (inputs @ weights - targets) / len(inputs)
        answer = coordinator.barrier(name, step, gradient)
        step, weights = coordinator.join(name, step, weights) if answer == NOT_A_MEMBER else answer
    coordinator.leave(name)
    return step, weights


# --- the driver


class MultiSliceJob:
    """Launches the coordinator and the slices, and more slices during the training."""

    def __init__(self, cluster: StorageCluster, config: Config) -> None:
        self.cluster = cluster
        self.config = config
        self.slices: list[JobId] = []
        self.jobs: list[JobId] = []

    def run(self) -> None:
        """Train, and print the result."""
        config = self.config
        try:
            coordinator = replace(self.request("multislice-coordinator", coordinate, config), actor=True)
            self.jobs += self.cluster.launch_group([coordinator], JobGroupConfig("multislice"))
            handle = ClusterResolver(self.cluster).wait_for_actor("slice_coordinator").call(idempotent=True)
            for number in range(config.early):
                self.add_slice(until=config.steps if number else config.steps * 2 // 3)
            self.follow(handle)
            step, weights = self.cluster.result(self.slices[-1])
            error = float(np.abs(weights - TRUE_WEIGHTS).max())
            print(f"step {step}: the weights are found to within {error:.1e}")
        finally:
            for job_id in self.jobs:
                self.cluster.terminate(job_id)

    def follow(self, coordinator: SliceCoordinator) -> None:
        """Print the members, and add a slice, until all slices are done."""
        told: list[str] = []
        while not all(self.cluster.poll(job).status.finished() for job in self.slices):
            step, members = coordinator.status()
            if members != told:
                told = members
                print(f"step {step}: {', '.join(members) or 'none'} in training", flush=True)
            if len(self.slices) == self.config.early and step >= self.config.steps // 3:
                self.add_slice(until=self.config.steps)
            time.sleep(0.05)

    def add_slice(self, until: int) -> None:
        """Launch one more slice, which leaves at step `until`."""
        number = len(self.slices)
        request = self.request(f"multislice-worker-{number}", train, self.config, number, until)
        self.slices += self.cluster.launch_group([request], JobGroupConfig("multislice"))
        self.jobs.append(self.slices[-1])

    def request(self, name: str, function: Callable[..., object], *args: object) -> JobRequest:
        """Launch a small job."""
        entrypoint = Entrypoint.from_callable(function, args=args)
        return JobRequest(name, entrypoint, ResourceConfig.with_cpu(cpu=0.25), max_retries_failure=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="a cluster with agents; by default FRAY_CLUSTER_SPEC, else a private one")
    parser.add_argument("--steps", type=int, default=Config.steps, help="of training")
    parser.add_argument("--pause", type=float, default=Config.pause, help="seconds that a gradient takes longer")
    options = parser.parse_args()
    root = options.root or os.environ.get("FRAY_CLUSTER_SPEC")
    with storage_cluster(open_cluster(root)) if root else LocalCluster() as cluster:
        MultiSliceJob(cluster, Config(steps=options.steps, pause=options.pause)).run()


if __name__ == "__main__":
    main()
