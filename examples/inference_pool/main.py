"""A pool of inference servers: each is a job with a model, all share one name, and a driver spreads prompts over them.

The model is a small one in numpy that tells the language of a text. Without `--root` everything runs on a private
cluster; with it, on the agents of that cluster. A server whose host dies starts again elsewhere, and its prompts go to
the other servers: the driver says that calls may be repeated, because asking a model twice does no harm.

The driver finds the servers through storage. On Ray, run agents as jobs there (docs/backends.md), and name their root.

Needs numpy, here and on the agents' hosts: `pip install '.[demo]'` in a clone.
"""

from __future__ import annotations

import argparse
import os
import string
from dataclasses import dataclass

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
from fray.rpc import ActorContext, ActorServer

TEXTS = {
    "Danish": "alle mennesker er født frie og lige i værdighed og rettigheder de er udstyret med fornuft",
    "English": "all human beings are born free and equal in dignity and rights they are endowed with reason",
    "Finnish": "kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan heille on annettu järki",
    "Spanish": "todos los seres humanos nacen libres e iguales en dignidad y derechos y dotados como están de razón",
}
PROMPTS = {
    "Danish": ["født med lige rettigheder", "alle har ret til liv og frihed", "vi er udstyret med fornuft"],
    "English": ["everyone has the right to life", "no one shall be held in slavery", "they should act in brotherhood"],
    "Finnish": ["jokaisella on oikeus elämään", "ketään ei saa pitää orjana", "heidän on toimittava toisiaan kohtaan"],
    "Spanish": ["todo individuo tiene derecho a la vida", "nadie estará sometido a esclavitud", "deben comportarse"],
}
LETTERS = string.ascii_lowercase + "äåæéíñóöøú "


@dataclass(frozen=True)
class Config:
    """Options. servers: jobs in the pool. repeats: how often all prompts are sent. batch: prompts in a call."""

    servers: int = 3
    repeats: int = 50
    batch: int = 4


class Model:
    """A model that knows how often one letter follows another in each language."""

    def __init__(self) -> None:
        self.names = list(TEXTS)
        counts = np.stack([self.pairs(text) for text in TEXTS.values()]) + 1
        self.weights = np.log(counts / counts.sum(axis=2, keepdims=True))

    def pairs(self, text: str) -> np.ndarray:
        """How often each letter follows each other one."""
        places = np.array([LETTERS.index(letter) for letter in text if letter in LETTERS])
        counts = np.zeros((len(LETTERS), len(LETTERS)))
        np.add.at(counts, (places[:-1], places[1:]), 1)
        return counts

    def generate(self, prompts: list[str]) -> list[str]:
        """The language of each prompt."""
        counts = np.stack([self.pairs(prompt) for prompt in prompts])
        scores = np.einsum("pij,lij->pl", counts, self.weights)
        return [self.names[best] for best in scores.argmax(axis=1)]


class InferenceActor:
    """Serves a model."""

    def __init__(self) -> None:
        self.model = Model()

    def predict(self, ctx: ActorContext, prompts: list[str]) -> tuple[str, list[str]]:
        """The job that answers, and its answers."""
        return ctx.job_id, self.model.generate(prompts)


def inference_server() -> None:
    """The function of each server's job."""
    server = ActorServer(current_cluster())
    server.register("inference", InferenceActor())
    server.serve()


def launch_servers(cluster: StorageCluster, config: Config) -> list[JobId]:
    """Launch a job for each server."""
    entrypoint = Entrypoint.from_callable(inference_server)
    requests = [
        JobRequest(f"inference-{number}", entrypoint, ResourceConfig.with_cpu(cpu=0.25), actor=True)
        for number in range(config.servers)
    ]
    return cluster.launch_group(requests, JobGroupConfig("inference-pool"))


def run(cluster: StorageCluster, config: Config) -> None:
    """Launch the pool, send it all prompts, and print how well it did."""
    jobs = launch_servers(cluster, config)
    try:
        pool = ClusterResolver(cluster).lookup("inference")
        pool.wait_for_size(config.servers)
        print(f"{pool.size} servers are up", flush=True)
        handle = pool.call(idempotent=True)
        asked = [(name, text) for _ in range(config.repeats) for name, texts in PROMPTS.items() for text in texts]
        batches = [asked[start : start + config.batch] for start in range(0, len(asked), config.batch)]
        right, answered_by = 0, set()
        for number, batch in enumerate(batches, 1):
            job, answers = handle.predict([text for _, text in batch])
            right += sum(answer == name for answer, (name, _) in zip(answers, batch, strict=True))
            answered_by.add(job)
            if number % (len(batches) // 10) == 0:
                print(f"{number} of {len(batches)} batches are answered", flush=True)
        print(f"{right} of {len(asked)} prompts were labelled right, by {len(answered_by)} servers")
    finally:
        for job_id in jobs:
            cluster.terminate(job_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="a cluster with agents; by default FRAY_CLUSTER_SPEC, else a private one")
    parser.add_argument("--servers", type=int, default=Config.servers)
    parser.add_argument("--repeats", type=int, default=Config.repeats, help="how often all prompts are asked")
    options = parser.parse_args()
    config = Config(options.servers, options.repeats)
    root = options.root or os.environ.get("FRAY_CLUSTER_SPEC")
    with storage_cluster(open_cluster(root)) if root else LocalCluster() as cluster:
        run(cluster, config)


if __name__ == "__main__":
    main()
