"""Job contexts on Ray: the behaviour that all backends share, and Ray's additions."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import cloudpickle
import pytest

from fray.actor import current_actor
from fray.backends.ray.client import RayClient
from fray.current_client import current_client
from fray.errors import ActorUnavailableError
from fray.job import JobContext, RayContext, create_job_ctx
from fray.job.context import get_default_job_ctx
from tests.behaviour.job_contexts import *  # noqa: F403
from tests.behaviour.job_contexts import Counter
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def context(client: RayClient) -> JobContext:
    return create_job_ctx("ray", max_workers=4, max_retries=0)


def test_a_task_is_given_the_object_of_a_reference(context: JobContext) -> None:
    kept = context.put([1, 2, 3])
    assert context.get(context.run(sum, kept)) == 6
    assert context.get([kept, kept]) == [[1, 2, 3]] * 2


def test_tasks_run_in_processes_of_rays_and_a_context_works_there(context: JobContext) -> None:
    actor = context.create_actor(Counter, name="everywhere")

    def inside(given: JobContext) -> tuple[list[int], int]:
        contexts = given, get_default_job_ctx()
        found = [each.create_actor(Counter, name="everywhere", get_if_exists=True) for each in contexts]
        return [given.get(given.run(abs, -42)), *(each.add() for each in found)], os.getpid()

    values, pid = context.get(context.run(inside, context))
    assert (values, actor.add()) == ([42, 1, 2], 3)
    assert pid != os.getpid()


def test_a_program_finds_the_ray_that_is_there(client: RayClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_CLUSTER_SPEC", raising=False)
    assert isinstance(create_job_ctx("auto"), RayContext)
    assert isinstance(current_client(), RayClient)
    for spec in ("ray:auto", "ray"):
        monkeypatch.setenv("FRAY_CLUSTER_SPEC", spec)
        assert isinstance(create_job_ctx("auto"), RayContext)
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local")
    assert not isinstance(create_job_ctx("auto"), RayContext)


def test_a_context_pickles(context: JobContext) -> None:
    again = pickle.loads(pickle.dumps(context))
    assert again.get(again.run(abs, -1)) == 1


def die() -> None:
    os._exit(1)


def test_a_task_that_ends_its_worker_is_given_up(context: JobContext) -> None:
    with pytest.raises(RuntimeError, match="worker"):
        context.get(context.run(die))


class Waiting:
    """Waits until it is ended."""

    def wait(self) -> bool:
        return current_actor().shutdown_event.wait(200)


def test_an_actor_that_is_deleted_has_no_grace(context: JobContext) -> None:
    actor = context.create_actor(Waiting)
    call = actor.wait.remote()
    context.delete_actor(actor)
    with pytest.raises(ActorUnavailableError):
        call.result(timeout=200)


def met(folder: str, count: int) -> int:
    """This process's id. Waits until `count` processes have come to the folder."""
    (Path(folder) / str(os.getpid())).touch()
    wait_until(lambda: len(os.listdir(folder)) >= count)
    return os.getpid()


def test_ray_decides_how_many_tasks_run(client: RayClient, tmp_path: Path) -> None:
    one = create_job_ctx("ray", max_workers=1, num_cpus=0.1)
    assert len(set(one.get([one.run(met, str(tmp_path), 2) for _ in range(2)]))) == 2


def test_a_task_is_not_cancelled(context: JobContext) -> None:
    future = context.run(abs, -1)
    assert not future.cancel()
    assert context.get(future) == 1
