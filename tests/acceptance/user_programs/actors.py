"""Actors: handles whose methods have the types that the class gives them; groups; actors of one's own process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

from fray import Client, current_client
from fray.actor import (
    ActorConfig,
    ActorContext,
    ActorFuture,
    ActorGroup,
    ActorHandle,
    ActorMethod,
    ActorUnavailableError,
    CallInterrupted,
    CheckpointConfig,
    CurrentActor,
    HostedActor,
    current_actor,
    idempotent,
    method,
    typed,
)
from fray.types import JobStatus, ResourceConfig


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @method
    def add(self, by: int) -> int:
        self.value += by
        return self.value

    @method
    @idempotent
    def get(self) -> int:
        return self.value

    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)

    async def wait(self, seconds: float) -> str:
        return f"{seconds}"


def call(client: Client) -> None:
    counter = client.create_actor(Counter, 5, name="counter", actor_config=ActorConfig(max_concurrency=4))
    assert_type(counter, ActorHandle[Counter])
    assert_type(counter.add, ActorMethod[..., Any])
    for number in counter.numbers.stream(3):
        print(number)
    known = typed(counter)
    assert_type(known.add(1), int)
    assert_type(known.add.remote(1), ActorFuture[int])
    assert_type(known.add.submit(1).result(timeout=5), int)
    assert_type(known.get.remote().exception(), BaseException | None)
    assert_type(known.get.remote().done(), bool)
    try:
        known.add(1)
    except (ActorUnavailableError, CallInterrupted) as error:
        print(error)


def group(client: Client) -> None:
    counters = client.create_actor_group(Counter, name="counters", count=3, resources=ResourceConfig.with_cpu(cpu=1))
    assert_type(counters, ActorGroup[Counter])
    ready = counters.wait_ready(count=2, timeout=60)
    assert_type(ready, list[ActorHandle[Counter]])
    assert_type([typed(handle).add.remote(1).result() for handle in counters.handles], list[int])
    assert_type(counters.discover_new(), list[ActorHandle[Counter]])
    assert_type(counters.ready_count, int)
    assert_type(counters.statuses(), list[JobStatus])
    assert_type(counters.is_done(), bool)
    counters.shutdown()


def host(client: Client) -> None:
    hosted = client.host_actor(Counter, name="here")
    assert_type(hosted, HostedActor[Counter])
    assert_type(hosted.handle, ActorHandle[Counter])
    hosted.shutdown()


def until_the_end_of_a_block() -> None:
    with current_client() as client, client.create_actor(Counter, name="counter") as counter:
        assert_type(counter, ActorHandle[Counter])
        with client.create_actor_group(Counter, name="counters", count=3) as counters:
            assert_type(counters, ActorGroup[Counter])
        with client.host_actor(Counter, name="here") as hosted:
            assert_type(hosted, HostedActor[Counter])


def of_another_program(client: Client) -> None:
    kept: ActorHandle[Counter] = client.get_actor("kept")
    assert_type(typed(kept).add(1), int)


class Knowing:
    """Knows where it runs."""

    def __init__(self, ctx: ActorContext | None = None) -> None:
        self.here = ctx or current_actor()

    def name(self) -> str:
        assert_type(current_actor(), CurrentActor)
        return self.here.group_name


def durable() -> ActorHandle[Knowing]:
    config = ActorConfig(checkpoint=CheckpointConfig(calls=10, seconds=1.0, replies=True), max_restarts=3)
    return current_client().create_actor(Knowing, name="store", actor_config=config)
