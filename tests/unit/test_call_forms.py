"""Calls with wrong arguments: the error has the right form, is a TypeError too, and signatures stay."""

from __future__ import annotations

import copy
import inspect
import pickle
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fray import ResourceConfig
from fray.call_forms import WrongCall, says_form
from fray.client import StorageClient
from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest, LocalCluster
from fray.errors import InvalidInput
from fray.pool import WorkerPool

Job: Any = JobRequest  # as a program without types uses it
Resources: Any = ResourceConfig
Environment: Any = EnvironmentConfig
Cluster: Any = LocalCluster
Client: Any = StorageClient
Pool: Any = WorkerPool
JOB = JobRequest("name", Entrypoint.from_binary("true"))


def refused(act: Callable[[], object]) -> str:
    """The message of a wrong call; its traceback shows the caller, and one frame of ours below it."""
    with pytest.raises(WrongCall) as caught:
        act()
    assert issubclass(WrongCall, TypeError)
    assert issubclass(WrongCall, InvalidInput)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    *_, caller, ours = traceback.extract_tb(caught.value.__traceback__)
    assert (caller.filename, ours.name) == (__file__, "checked")
    return str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Job("a", int, cpu=1),
            "JobRequest.cpu: 1 is not accepted; there is no such argument; it is resources=ResourceConfig(cpu=...)",
        ),
        (
            lambda: Job("a", int, memory="1GB"),
            "JobRequest.memory: '...' is not accepted; there is no such argument; it is "
            "resources=ResourceConfig(memory=...)",
        ),
        (
            lambda: Job("a", int, secret_env_vars={"A": "hunter2"}),
            "JobRequest.secret_env_vars: '...' is not accepted; there is no such argument; it is "
            "environment=EnvironmentConfig(secret_env_vars=...)",
        ),
        (
            lambda: Job("a", int, gpus=8),
            "JobRequest.gpus: 8 is not accepted; there is no such argument; it is "
            'resources=ResourceConfig.with_gpu("h100", count=8)',
        ),
        (
            lambda: Job("a", int, timeuot=1),
            "JobRequest.timeuot: 1 is not accepted; there is no such argument; did you mean timeout",
        ),
        (
            lambda: Job("a"),
            "JobRequest.entrypoint: None is not accepted; it is missing; write "
            'JobRequest("name", Entrypoint.from_callable(function, args=(...)), ResourceConfig(cpu=2))',
        ),
        (
            lambda: Job("a", int, name="b"),
            "JobRequest.name: '...' is not accepted; it is given twice; write "
            'JobRequest("name", Entrypoint.from_callable(function, args=(...)), ResourceConfig(cpu=2))',
        ),
        (
            lambda: Resources(gpus=1),
            "ResourceConfig.gpus: 1 is not accepted; there is no such argument; it is "
            'device=GpuConfig("h100", count=8), or write ResourceConfig.with_gpu("h100", count=8)',
        ),
        (
            lambda: Environment(pip=["numpy"]),
            "EnvironmentConfig.pip: '...' is not accepted; there is no such argument; it is pip_packages=[...]",
        ),
        (
            lambda: Cluster.launch(None, "x", 7),
            "cluster.launch: [7] is not accepted; it is one argument too many; write "
            'cluster.launch(JobRequest("name", Entrypoint.from_callable(function, args=(...))))',
        ),
        (
            lambda: Client.submit(None, "x", True, 7),
            "client.submit: [7] is not accepted; it is one argument too many; write "
            'client.submit(JobRequest("name", Entrypoint.from_callable(function, args=(...))))',
        ),
        (
            lambda: Client.create_actor(None, int),
            "client.create_actor.name: None is not accepted; it is missing; write "
            'client.create_actor(Class, *args, name="name")',
        ),
        (
            lambda: Client.create_actor_group(None, int, name="a"),
            "client.create_actor_group.count: None is not accepted; it is missing; write "
            'client.create_actor_group(Class, *args, name="name", count=4)',
        ),
        (
            lambda: Pool.map(None, max, [1, 2], [3, 4]),
            "pool.map: [[3, 4]] is not accepted; it is one argument too many; write pool.map(function, items); for "
            "several lists: pool.map(lambda both: function(*both), zip(xs, ys))",
        ),
        (
            lambda: Pool(None, cpu=2),
            "WorkerPool.cpu: 2 is not accepted; there is no such argument; it is resources=ResourceConfig(cpu=...)",
        ),
    ],
)
def test_a_wrong_call_says_the_right_form(call: Callable[[], object], message: str) -> None:
    assert refused(call) == message


def test_a_field_that_does_not_exist_cannot_be_replaced() -> None:
    changes: dict[str, Any] = {"cpu": 1}
    with pytest.raises(WrongCall, match=r"it is resources=ResourceConfig\(cpu="):
        replace(JOB, **changes)


def test_an_error_inside_of_the_function_stays_as_it_is() -> None:
    @says_form("add(number)")
    def add(number: Any) -> Any:
        return number + 1

    assert add(1) == 2
    with pytest.raises(TypeError) as caught:
        add("x")
    assert not isinstance(caught.value, WrongCall)


def test_signatures_and_copies_are_those_of_the_class() -> None:
    assert list(inspect.signature(JobRequest).parameters)[:3] == ["name", "entrypoint", "resources"]
    assert list(inspect.signature(WorkerPool.map).parameters) == ["self", "fn", "items"]
    assert pickle.loads(pickle.dumps(JOB)) == copy.deepcopy(JOB) == replace(JOB) == JOB
    error = pickle.loads(pickle.dumps(WrongCall("f", 1, "write f()")))
    assert (type(error), str(error)) == (WrongCall, "f: 1 is not accepted; write f()")
