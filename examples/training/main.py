"""Trains a small language model on the sources of Python's standard library, as a job that may be preempted.

The job writes a checkpoint every so many steps, and when its host is taken away. The next attempt continues from the
newest one, and ends with exactly the weights of an undisturbed run.

    python examples/training/main.py                                                # on a private cluster
    FRAY_CLUSTER_SPEC=gs://bucket/fray python examples/training/main.py --checkpoints gs://bucket/models/small
    FRAY_CLUSTER_SPEC=ray:auto python examples/training/main.py --checkpoints gs://bucket/models/small      # on Ray

Needs numpy and fsspec, here and on the agents' hosts: `pip install '.[demo]'` in a clone; for checkpoints in a bucket
gcsfs or s3fs too.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import checkpoints
import cloudpickle
import model
import numpy as np

from fray.cluster import Entrypoint, JobRequest, ResourceConfig, current_cluster

# The job runs on hosts that do not have these files, so their code is pickled with the job's function.
cloudpickle.register_pickle_by_value(model)
cloudpickle.register_pickle_by_value(checkpoints)


@dataclass(frozen=True)
class TrainingConfig:
    """Options. checkpoints: their URL. every: steps from one to the next."""

    checkpoints: str
    steps: int
    every: int = 50
    seed: int = 0


def read_text() -> model.Bytes:
    """The files at the top of the standard library, as characters."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return np.frombuffer(text, np.uint8) % model.CHARACTERS


def train_model(config: TrainingConfig) -> dict[str, Any]:
    """The function of the job."""
    found = checkpoints.newest(config.checkpoints)
    net, starts = found or (model.Model.fresh(config.seed), [])
    starts = [*starts, net.step]
    print(f"attempt {len(starts)} begins at step {net.step}", flush=True)

    def preempted(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, preempted)
    text, loss, whole = read_text(), float("nan"), net.step
    try:
        while net.step < config.steps:
            loss, whole = net.learn(text, config.seed), net.step
            if net.step % config.every == 0:
                checkpoints.save(net, config.checkpoints, starts)
                print(f"step {net.step}: {loss / np.log(2):.3f} bits a character", flush=True)
    except SystemExit:
        if whole == net.step:  # otherwise the signal came in the middle of an update, and the last checkpoint counts
            checkpoints.save(net, config.checkpoints, starts)
        raise
    weights = b"".join(net.weights[name].tobytes() for name in sorted(net.weights))
    return {"loss": loss, "starts": starts, "weights": hashlib.sha256(weights).hexdigest()}


def launch_training(config: TrainingConfig) -> dict[str, Any]:
    """Train on the current cluster, and print the job's output as it arrives."""
    cluster = current_cluster()
    job = cluster.launch(
        JobRequest(
            name="train-small",
            entrypoint=Entrypoint.from_callable(train_model, args=(config,)),
            resources=ResourceConfig.with_cpu(cpu=1, memory="1GB"),
        )
    )
    cluster.monitor(job)
    result: dict[str, Any] = cluster.result(job)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", help="URL; by default a temporary directory")
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = launch_training(TrainingConfig(options.checkpoints or folder, options.steps))
    begun = ", ".join(str(start) for start in result["starts"])
    print(f"loss {result['loss']:.3f} nats; attempts began at steps {begun}; weights {result['weights'][:16]}")


if __name__ == "__main__":
    main()
