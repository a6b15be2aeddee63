"""Reinforcement learning with a coordinator for shared state, rollout workers, and a trainer.

The coordinator's job serves a curriculum, which mostly gives out the lessons with the worst results, and the latest
weights. Rollout workers play lessons with those weights and send the results to the trainer, which serves a buffer for
them. The trainer improves the policy (a softmax over actions, by REINFORCE, in numpy) and publishes the weights.
Without `--root` everything runs on a private cluster; with it, on the agents of that cluster. Any job may die with its
host: workers and the coordinator start again and get their state back, and a trainer continues from the latest weights.

The jobs find one another through storage. On Ray, run agents as jobs there (docs/backends.md), and name their root.

Needs numpy, here and on the agents' hosts: `pip install '.[demo]'` in a clone.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from fray.cluster import (
    Cluster,
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

RIGHT = {"add": 3, "carry": 1, "divide": 5, "guess": 0, "prove": 4}
"""The lessons, and the one rewarded action of each; only the environment knows them."""

ACTIONS = 6
MASTERED = 0.9
"""Mean reward from which a lesson counts as learnt."""


@dataclass(frozen=True)
class Config:
    """Options. workers: rollout jobs. batch: rollouts that the trainer learns from at once. rate: learning rate."""

    workers: int = 2
    batch: int = 64
    rate: float = 2.0


@dataclass(frozen=True)
class Rollout:
    """One rollout: the action in a lesson, and its reward."""

    lesson: str
    action: int
    reward: float


def policy(weights: np.ndarray, lesson: str) -> np.ndarray:
    """The probability of each action."""
    scores = np.exp(weights[list(RIGHT).index(lesson)])
    chances: np.ndarray = scores / scores.sum()
    return chances


# --- shared state


class Curriculum:
    """Gives out lessons, mostly those with bad results."""

    def __init__(self) -> None:
        self.rewards: dict[str, deque[float]] = {lesson: deque(maxlen=50) for lesson in RIGHT}
        self.rng = np.random.default_rng()

    def get_lesson(self) -> str:
        wanted = np.array([1.1 - self.mean(lesson) for lesson in self.rewards])
        return str(self.rng.choice(list(self.rewards), p=wanted / wanted.sum()))

    def report_results(self, rollouts: list[Rollout]) -> None:
        for rollout in rollouts:
            self.rewards[rollout.lesson].append(rollout.reward)

    def learnt(self) -> list[str]:
        """The lessons that are learnt."""
        return [lesson for lesson, seen in self.rewards.items() if len(seen) == 50 and self.mean(lesson) >= MASTERED]

    def mean(self, lesson: str) -> float:
        seen = self.rewards[lesson]
        return sum(seen) / len(seen) if seen else 0.0


class Weights:
    """Keeps the latest weights."""

    def __init__(self) -> None:
        self.step = 0
        self.weights = np.zeros((len(RIGHT), ACTIONS))

    def publish(self, step: int, weights: np.ndarray) -> None:
        self.step, self.weights = step, weights

    def latest(self) -> tuple[int, np.ndarray]:
        return self.step, self.weights


class Buffer:
    """Keeps rollouts until the trainer takes them; if the trainer is too slow, the oldest are dropped."""

    def __init__(self) -> None:
        self.rollouts: deque[Rollout] = deque(maxlen=1000)

    def put(self, rollouts: list[Rollout]) -> None:
        self.rollouts.extend(rollouts)

    def take(self, count: int) -> list[Rollout]:
        """Take that many rollouts, or none if there are fewer."""
        return [self.rollouts.popleft() for _ in range(count)] if len(self.rollouts) >= count else []


# --- the functions of the jobs


def coordinate() -> None:
    server = ActorServer(current_cluster())
    server.register("curriculum", Curriculum())
    server.register("weights", Weights())
    server.serve()


def train(config: Config) -> np.ndarray:
    """Learn until every lesson is learnt; return the weights."""
    cluster = current_cluster()
    curriculum, keeper = shared(cluster)
    server = ActorServer(cluster)
    server.register("rollouts", Buffer())
    server.serve_background()
    rollouts = ClusterResolver(cluster).wait_for_actor("rollouts")
    step, weights = keeper.latest()
    print(f"the trainer begins at step {step}", flush=True)
    while len(learnt := curriculum.learnt()) < len(RIGHT):
        batch = rollouts.take(config.batch)
        if not batch:
            time.sleep(0.01)  # the workers are slower
            continue
        step, weights = step + 1, improved(weights, batch, config.rate)
        keeper.publish(step, weights)
        if step % 10 == 0:
            print(f"step {step}: learnt {len(learnt)} of {len(RIGHT)} lessons", flush=True)
    server.shutdown()
    return weights


def improved(weights: np.ndarray, batch: list[Rollout], rate: float) -> np.ndarray:
    """One step of REINFORCE; the mean reward of a lesson is its baseline."""
    gradient: np.ndarray = np.zeros_like(weights)
    for lesson in {rollout.lesson for rollout in batch}:
        tries = [rollout for rollout in batch if rollout.lesson == lesson]
        baseline = sum(rollout.reward for rollout in tries) / len(tries)
        for rollout in tries:
            advantage = rollout.reward - baseline
            gradient[list(RIGHT).index(lesson)] += advantage * (
                np.eye(ACTIONS)[rollout.action] - policy(weights, lesson)
            )
    return weights + rate * gradient / len(batch)


def roll_out(size: int = 16) -> None:
    """Play lessons for as long as this job lives."""
    cluster = current_cluster()
    curriculum, keeper = shared(cluster)
    rollouts = ClusterResolver(cluster).lookup("rollouts").call(idempotent=True)
    rng = np.random.default_rng()
    while True:
        _, weights = keeper.latest()
        lesson = curriculum.get_lesson()
        actions = rng.choice(ACTIONS, size=size, p=policy(weights, lesson))
        tried = [Rollout(lesson, int(action), float(action == RIGHT[lesson])) for action in actions]
        curriculum.report_results(tried)
        rollouts.put(tried)


def shared(cluster: Cluster) -> tuple[Curriculum, Weights]:
    """Handles to the curriculum and the weights, once they are served. All their calls may be repeated safely."""
    resolver = ClusterResolver(cluster)
    curriculum: Curriculum = resolver.wait_for_actor("curriculum").call(idempotent=True)
    weights: Weights = resolver.wait_for_actor("weights").call(idempotent=True)
    return curriculum, weights


# --- the driver


def launch(cluster: StorageCluster, config: Config) -> list[JobId]:
    """The trainer's job, the coordinator and the workers."""
    little = ResourceConfig.with_cpu(cpu=0.25)
    requests = [
        JobRequest("rl-train", Entrypoint.from_callable(train, args=(config,)), little),
        JobRequest("rl-coordinator", Entrypoint.from_callable(coordinate), little, actor=True),
        *(
            JobRequest(f"rl-rollout-{number}", Entrypoint.from_callable(roll_out), little)
            for number in range(config.workers)
        ),
    ]
    return cluster.launch_group(requests, JobGroupConfig("rl"))


def run(cluster: StorageCluster, config: Config) -> None:
    """Launch everything, follow the trainer, and print what it has learnt."""
    jobs = launch(cluster, config)
    try:
        cluster.monitor(jobs[0])
        weights = cluster.result(jobs[0])
        best = {lesson: int(policy(weights, lesson).argmax()) for lesson in RIGHT}
        print(f"{sum(best[lesson] == RIGHT[lesson] for lesson in RIGHT)} of {len(RIGHT)} lessons are done right")
    finally:
        for job_id in jobs:
            cluster.terminate(job_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="a cluster with agents; by default FRAY_CLUSTER_SPEC, else a private one")
    parser.add_argument("--workers", type=int, default=Config.workers, help="rollout jobs")
    parser.add_argument("--rate", type=float, default=Config.rate, help="of learning")
    options = parser.parse_args()
    root = options.root or os.environ.get("FRAY_CLUSTER_SPEC")
    with storage_cluster(open_cluster(root)) if root else LocalCluster(max_workers=8) as cluster:
        run(cluster, Config(workers=options.workers, rate=options.rate))


if __name__ == "__main__":
    main()
