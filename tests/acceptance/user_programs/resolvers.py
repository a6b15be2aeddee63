"""Actors by name: served by any process, found by a resolver."""

from __future__ import annotations

from typing import assert_type

from fray.cluster import ClusterResolver, FixedResolver, LocalResolver, current_cluster
from fray.rpc import ActorContext, ActorEndpoint, ActorId, ActorPool, ActorServer, Resolver


class Inference:
    def __init__(self, weights: str) -> None:
        self.weights = weights

    def predict(self, ctx: ActorContext, prompt: str) -> str:
        print(ctx)
        return prompt


def serve() -> None:
    server = ActorServer(current_cluster())
    assert_type(server.register("inference", Inference("v1"), metadata={"version": "1"}), ActorId)
    server.serve_background()
    server.shutdown()


def call(resolver: Resolver) -> str:
    pool: ActorPool[Inference] = resolver.lookup("inference")
    pool.wait_for_size(2, timeout=60)
    assert_type(pool.size, int)
    assert_type(pool.endpoints, list[ActorEndpoint])
    assert_type(pool.call(), Inference)
    answers = [future.result() for future in pool.broadcast().predict("hello")]
    print(answers)
    return pool.call(idempotent=True).weights


def resolvers() -> list[Resolver]:
    return [ClusterResolver(current_cluster()), LocalResolver(), FixedResolver({"inference": "10.0.0.7:8080"})]
