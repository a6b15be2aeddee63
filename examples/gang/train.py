"""The program of every replica of the gang: data-parallel training with JAX, and the model that it trains.

Each process has a share of every batch. The gradient of the mean over the whole batch is an all-reduce over all
processes, which XLA inserts because the batch is spread over all of them and the weights are the same on each.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

INPUTS, HIDDEN, ROWS = 4, 16, 64
RATE = 0.2

Weights = dict[str, Any]


@dataclass(frozen=True)
class TrainingConfig:
    """Options of the training.

    Attributes:
        folder: folder of the checkpoints, which all hosts can read.
        every: steps from one checkpoint to the next.
        pause: seconds by which each step is slowed down.
    """

    folder: str
    steps: int = 100
    every: int = 10
    pause: float = 0.1


def train_replica(config: TrainingConfig) -> dict[str, Any]:
    """Train from the newest checkpoint to the last step. All replicas return the same."""
    environ = os.environ
    replica, replicas = int(environ["FRAY_REPLICA"]), int(environ["FRAY_REPLICAS"])
    slices = int(environ["FRAY_SLICES"])
    jax.config.update("jax_platforms", "cpu")
    # If a collective fails because a peer is gone, JAX would wait for it at the end, for five minutes by default.
    jax.distributed.initialize(environ["JAX_COORDINATOR_ADDRESS"], replicas, replica, shutdown_timeout_seconds=5)
    mesh = Mesh(np.array(jax.devices()).reshape(slices, -1), ("slice", "host"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    shared = NamedSharding(mesh, PartitionSpec(("slice", "host")))

    def over_all(share: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(shared, share)

    total = jax.jit(jnp.sum, out_shardings=everywhere)(over_all(np.array([2.0**replica])))
    assert int(total) == 2**replicas - 1, f"the all-reduce over {replicas} processes gave {total}"
    step, starts, weights = newest(config.folder)
    starts = [*starts, step]
    print(f"replica {replica} of {replicas} in {slices} slices: all-reduce {int(total)}, from step {step}", flush=True)
    weights = jax.device_put(weights, everywhere)
    while step < config.steps:
        loss, weights = learn(weights, *map(over_all, batch(step, replica)))
        step += 1
        if step % config.every == 0 and replica == 0:
            save(config.folder, step, starts, weights)
            print(f"step {step}: loss {float(loss):.4f}", flush=True)
        time.sleep(config.pause)
    multihost_utils.sync_global_devices("trained")
    jax.distributed.shutdown()
    return {"starts": starts, "all_reduce": int(total), "weights": {name: np.asarray(w) for name, w in weights.items()}}


def train_alone(steps: int, replicas: int) -> Weights:
    """The weights that a single process computes, with the shares of all replicas in its batches."""
    weights = fresh()
    for step in range(steps):
        shares = [batch(step, replica) for replica in range(replicas)]
        _, weights = learn(weights, *(np.concatenate(parts) for parts in zip(*shares, strict=True)))
    return {name: np.asarray(values) for name, values in weights.items()}


@jax.jit  # type: ignore[untyped-decorator]
def learn(weights: Weights, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, Weights]:
    """The loss, and the weights after one step against its gradient."""
    value, slopes = jax.value_and_grad(loss_of)(weights, inputs, targets)
    return value, jax.tree.map(lambda weight, slope: weight - RATE * slope, weights, slopes)


def loss_of(weights: Weights, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean squared error of a network with one hidden layer."""
    hidden = jnp.tanh(inputs @ weights["into"] + weights["bias"])
    return jnp.mean((hidden @ weights["out"] - targets) ** 2)


def fresh() -> Weights:
    """The weights before the first step."""
    draw = np.random.default_rng(0)
    return {
        "into": draw.normal(0, INPUTS**-0.5, (INPUTS, HIDDEN)).astype(np.float32),
        "bias": np.zeros(HIDDEN, np.float32),
        "out": draw.normal(0, HIDDEN**-0.5, HIDDEN).astype(np.float32),
    }


def batch(step: int, replica: int) -> tuple[np.ndarray, np.ndarray]:
    """A replica's share of the batch of a step; it is the same when the step is repeated."""
    inputs = np.random.default_rng((step, replica)).normal(size=(ROWS, INPUTS)).astype(np.float32)
    return inputs, np.sin(inputs[:, 0]) + inputs[:, 1] / 2


# --- checkpoints: one file for every so many steps; the highest counts


def save(folder: str, step: int, starts: list[int], weights: Weights) -> None:
    """Write a checkpoint. starts: the steps at which the attempts so far began."""
    part = Path(folder) / "part"
    with part.open("wb") as file:
        np.savez(file, starts=starts, **weights)
    part.rename(Path(folder) / f"step-{step:06d}.npz")


def newest(folder: str) -> tuple[int, list[int], Weights]:
    """The step, the starts of earlier attempts, and the weights. No replica writes before all have read."""
    found = max(Path(folder).glob("step-*.npz"), default=None)
    if found is None:
        return 0, [], fresh()
    with np.load(found) as parts:
        weights = {name: parts[name] for name in parts.files if name != "starts"}
        return int(found.stem.removeprefix("step-")), [int(start) for start in parts["starts"]], weights
