"""Actors on Ray: the behaviour that all backends share, and the behaviour that is Ray's own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import cloudpickle
import pytest

from fray.actor import ActorUnavailableError, CallInterrupted, idempotent
from fray.backends.ray.client import RayClient
from fray.errors import ActorNotFoundError, InvalidInput, NameTaken
from fray.types import ActorConfig, CheckpointConfig, EnvironmentConfig, JobStatus
from fray_rpc.errors import RemoteError
from tests.behaviour.actors import *  # noqa: F403
from tests.behaviour.actors import create, create_group
from tests.support import actors
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

DETACHED = ActorConfig(detached=True)


class Mortal:
    """Dies when it is asked to."""

    def __init__(self) -> None:
        self.calls = 0

    @idempotent
    def pid(self) -> int:
        return os.getpid()

    @idempotent
    def die_once(self, first: int) -> int:
        if os.getpid() == first:
            os._exit(1)
        return os.getpid()

    def die(self) -> None:
        os._exit(1)

    def leave(self) -> None:
        sys.exit(3)

    def count(self) -> int:
        self.calls += 1
        return self.calls


def test_a_call_whose_actor_died_is_interrupted_and_the_next_one_waits_for_its_restart(client: RayClient) -> None:
    mortal = create(client, Mortal)
    first = mortal.pid()
    with pytest.raises(CallInterrupted, match="max_task_retries"):
        mortal.die()
    assert mortal.count() == 1
    assert mortal.pid() != first


def test_a_call_is_made_again_if_its_method_is_idempotent_or_its_actor_says_so(client: RayClient) -> None:
    mortal = create(client, Mortal)
    first = mortal.pid()
    assert mortal.die_once(first) != first
    again = create(client, Mortal, name="again", max_task_retries=1, max_restarts=0)
    with pytest.raises(ActorUnavailableError):
        again.die()


def test_an_actor_that_is_not_restarted_has_failed(client: RayClient) -> None:
    group = create_group(client, Mortal, name="once", max_restarts=0)
    with pytest.raises(ActorUnavailableError):
        group.handles[0].die()
    wait_until(group.is_done)
    assert group.statuses() == [JobStatus.FAILED]


def test_a_method_that_exits_ends_nobody(client: RayClient) -> None:
    mortal = create(client, Mortal)
    with pytest.raises(RemoteError, match=r"SystemExit\(3\)"):
        mortal.leave()
    assert mortal.count() == 1


async def test_a_call_is_awaited(client: RayClient) -> None:
    counter = create(client, actors.Counter)
    assert await counter.add.remote(2) == 2
    (ready,) = await create_group(client, actors.Counter, name="awaited").wait_ready_async()
    assert ready.add() == 1


def test_a_detached_actor_is_found_by_its_name_and_is_the_only_one(client: RayClient) -> None:
    with client.create_actor(actors.Counter, 5, name="kept", actor_config=DETACHED) as kept:
        assert kept.add() == 6
        assert client.get_actor("kept") == kept
        assert client.get_actor("kept").add() == 7
        with pytest.raises(NameTaken, match="kept"):
            client.create_actor(actors.Counter, name="kept", actor_config=DETACHED)
    with pytest.raises(ActorNotFoundError):
        client.get_actor("nobody")


HERE = """
import pickle, sys
from fray.current_client import current_client
handle = pickle.load(sys.stdin.buffer)
print(type(current_client()).__name__, handle.add())
"""


class Starter:
    """Starts a process and passes a handle to it."""

    def start(self, python: str, pickled: bytes) -> str:
        return subprocess.run([python, "-c", HERE], input=pickled, capture_output=True, check=True).stdout.decode()


def test_a_subprocess_of_an_actor_finds_the_same_ray(client: RayClient) -> None:
    counter = create(client, actors.Counter)
    told = create(client, Starter, name="starter").start(sys.executable, pickle.dumps(counter))
    assert told.split() == ["RayClient", "1"]
    assert counter.add() == 2


def test_a_stream_that_is_left_ends_its_generator(client: RayClient) -> None:
    endless = create(client, actors.Async)
    items = endless.numbers.stream(10**9)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert endless.open.remote().result(timeout=200) is None


# Behaviour that is Ray's own: each has its row in docs/backends.md.


def test_the_error_of_an_init_is_told_in_words_and_is_no_cause(client: RayClient) -> None:
    group = create_group(client, actors.Broken, name="without-model")
    with pytest.raises(ActorUnavailableError, match="LookupError: no such model") as caught:
        group.wait_ready()
    assert caught.value.__cause__ is None
    assert group.statuses() == [JobStatus.FAILED]


def test_the_error_that_an_actor_fails_with_is_not_kept(client: RayClient) -> None:
    group = create_group(client, actors.Self, name="failing")
    (handle,) = group.wait_ready()
    handle.fail()
    wait_until(group.is_done)
    assert group.statuses() == [JobStatus.STOPPED]
    with pytest.raises(ActorUnavailableError):
        handle.here()


def test_a_hosted_actor_is_in_a_process_of_its_own(client: RayClient) -> None:
    with client.host_actor(actors.Counter, 7, name="hosted") as hosted:
        assert hosted.handle.add() == 8
        assert hosted.handle.pid() != os.getpid()
    with pytest.raises(ActorUnavailableError, match="the program that hosted it"):
        hosted.handle.add()


def test_actors_have_no_jobs(client: RayClient) -> None:
    group = create_group(client, actors.Counter, name="jobless")
    with pytest.raises(InvalidInput, match=r"statuses\(\)"):
        print(group.jobs)


def test_there_are_no_checkpoints(client: RayClient) -> None:
    with pytest.raises(InvalidInput, match="need storage, which Ray does not have"):
        create(client, actors.Counter, checkpoint=CheckpointConfig(replies=True))


def test_values_that_cannot_be_pickled_raise_the_errors_of_pickle(client: RayClient) -> None:
    holder = create(client, actors.Holder)
    calls: list[Callable[[], object]] = [holder.give, lambda: holder.take(os.scandir())]
    for call in calls:
        with pytest.raises(TypeError, match="pickle"):
            call()


def test_an_actor_that_was_found_after_its_end_was_stopped(client: RayClient) -> None:
    group = create_group(client, actors.Counter, name="gone")
    elsewhere = pickle.loads(pickle.dumps(group))
    group.shutdown()
    wait_until(group.is_done)
    with pytest.raises(ActorUnavailableError):
        elsewhere.handles[0].add()
    assert elsewhere.statuses() == [JobStatus.STOPPED]


def test_calls_behind_one_that_ends_the_actor_are_interrupted(client: RayClient) -> None:
    mortal = create(client, Mortal)
    assert mortal.count() == 1
    for call in [mortal.die.remote(), mortal.count.remote()]:
        with pytest.raises(CallInterrupted):
            call.result(timeout=200)


class Secretive:
    """Reports the arguments and variables of its process."""

    def variables(self) -> tuple[str, str]:
        return os.environ["PLAIN"], os.environ["SECRET"]


def test_variables_reach_an_actor(client: RayClient) -> None:
    environment = EnvironmentConfig(env_vars={"PLAIN": "a"}, secret_env_vars={"SECRET": "b"})
    assert client.create_actor(Secretive, name="secretive", environment=environment).variables() == ("a", "b")
