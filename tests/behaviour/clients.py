"""What a client does on every backend; a module of tests has a fixture `client` and imports all of this."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable

import cloudpickle
import pytest

from fray.actor import ActorHandle, current_actor
from fray.client import Client, JobFailed, JobHandle, wait_all
from fray.current_client import current_client
from fray.errors import ActorUnavailableError, InvalidInput
from fray.local_backend import LocalClient
from fray.types import Entrypoint, EnvironmentConfig, JobRequest, JobStatus, ResourceConfig
from tests.support import actors
from tests.support.waiting import PATIENCE, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def call(name: str, fn: object, *args: object, **fields: object) -> JobRequest:
    return JobRequest(name, Entrypoint.from_callable(fn, args), **fields)  # type: ignore[arg-type]


def test_a_callable_runs_and_its_job_is_waited_for(client: Client) -> None:
    job = client.submit(call("add", lambda a, b: a + b, 1, 2))
    assert job.wait(timeout=200) is JobStatus.SUCCEEDED
    assert job.status() is JobStatus.SUCCEEDED
    assert job.job_id.startswith("add-")
    assert client.cluster.result(job.job_id) == 3


def fail_clearly() -> None:
    raise LookupError("no such shard: 7")


def test_a_failure_is_told_with_its_own_words(client: Client) -> None:
    job = client.submit(call("fails", fail_clearly))
    with pytest.raises(JobFailed, match="no such shard: 7") as caught:
        job.wait(timeout=200)
    assert "in fail_clearly" in str(caught.value)
    assert isinstance(caught.value.__cause__, LookupError)
    assert job.wait(raise_on_failure=False) is JobStatus.FAILED


def test_all_are_waited_for_together(client: Client) -> None:
    jobs = [client.submit(call(f"part-{i}", time.sleep, 0.01)) for i in range(4)]
    assert wait_all(jobs, timeout=200) == [JobStatus.SUCCEEDED] * 4
    endless = client.submit(call("endless", sleep_in_small_steps))
    with pytest.raises(JobFailed, match="no such shard"):
        wait_all([endless, client.submit(call("fails", fail_clearly))], timeout=200)
    endless.terminate()
    assert endless.wait(timeout=PATIENCE, raise_on_failure=False) is JobStatus.STOPPED


def sleep_in_small_steps() -> None:
    for _ in range(100_000):
        time.sleep(0.001)


WRONG: dict[str, Callable[[Client], object]] = {
    "max_lines": lambda client: client.submit(call("quick", int)).logs(-1),
    "name": lambda client: client.create_actor(Diary, name=None),  # type: ignore[arg-type]
    "actor_class": lambda client: client.create_actor(3, name="three"),  # type: ignore[arg-type]
    "resources.memory": lambda client: client.submit(call("big", int, resources=ResourceConfig(ram="lots"))),
    "resources.cpu": lambda client: client.submit(call("less", int, resources=ResourceConfig(cpu=-1))),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_refused_at_once(client: Client, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: "):
        WRONG[field](client)


def leave(code: int) -> None:
    sys.exit(code)


def test_an_exit_code_is_told(client: Client) -> None:
    with pytest.raises(JobFailed, match="exited: exit code 3"):
        client.submit(call("leaves", leave, 3)).wait(timeout=200)


class Diary:
    def write(self, line: str) -> str:
        print(line)
        return os.environ["PLAIN"] + os.environ["SECRET"]


def print_both() -> str:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    raise LookupError(os.environ["PLAIN"] + os.environ["SECRET"])


ENVIRONMENT = EnvironmentConfig(env_vars={"PLAIN": "a"}, secret_env_vars={"SECRET": "b"})


def test_variables_reach_callables_commands_and_actors(client: Client) -> None:
    script = Entrypoint.from_binary("sh", ["-c", "echo $PLAIN$SECRET"])
    command = client.submit(JobRequest("command", script, environment=ENVIRONMENT))
    failing = client.submit(call("prints", print_both, environment=ENVIRONMENT))
    actor = client.create_actor(Diary, name="diary", environment=ENVIRONMENT)
    assert actor.write("in a call") == "ab"
    command.wait(timeout=200)
    assert command.logs() == ("ab",)
    assert failing.wait(timeout=PATIENCE, raise_on_failure=False) is JobStatus.FAILED
    assert set(failing.logs()) > {"to stdout", "to stderr", "LookupError: ab"}


def test_logs_are_the_last_lines(client: Client) -> None:
    job = client.submit(JobRequest("says", Entrypoint.from_binary("sh", ["-c", "echo one; echo two; echo three"])))
    job.wait(timeout=200)
    assert job.logs() == ("one", "two", "three")
    assert job.logs(max_lines=2) == ("two", "three")


def submit_a_child() -> tuple[str, str, str]:
    mine = current_client()
    child = mine.submit(call("child", lambda: os.environ.get("FRAY_JOB_ID")))
    child.wait()
    return mine.cluster.root, type(mine).__name__, mine.cluster.poll(child.job_id).parent or ""


def test_in_a_job_the_current_client_is_that_of_its_cluster(client: Client) -> None:
    job = client.submit(call("parent", submit_a_child))
    assert client.cluster.result(job.job_id, timeout=200) == (client.cluster.root, type(client).__name__, job.job_id)


WHERE = "from fray.current_client import current_client; print(current_client().cluster.root)"


def ask_a_subprocess(python: str) -> str:
    return subprocess.run([python, "-c", WHERE], capture_output=True, text=True, check=True).stdout.strip()


def test_a_subprocess_of_a_job_finds_the_cluster_too(client: Client) -> None:
    job = client.submit(JobRequest("asks", Entrypoint.from_binary(sys.executable, ["-c", WHERE])))
    job.wait(timeout=200)
    assert job.logs() == (client.cluster.root,)
    if not isinstance(client, LocalClient):
        nested = client.submit(call("asks-deeper", ask_a_subprocess, sys.executable))
        assert client.cluster.result(nested.job_id, timeout=200) == client.cluster.root


class Reporter:
    """Tells where it is, from each place that its code can run in."""

    def __init__(self, start: int) -> None:
        self.total = start
        self.root_at_birth = root_here()

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def roots(self, python: str) -> list[str]:
        return [self.root_at_birth, root_here(), ask_a_subprocess(python)]


def root_here() -> str:
    return current_client().cluster.root


def test_actors_are_created_alone_in_groups_and_right_here(client: Client) -> None:
    alone = client.create_actor(Reporter, 5, name="alone")
    assert (alone.add(1), alone.add.remote(1).result(timeout=200)) == (6, 7)
    group = client.create_actor_group(Reporter, start=10, name="several", count=2)
    assert [handle.add(index) for index, handle in enumerate(group.wait_ready(timeout=200))] == [10, 11]
    group.shutdown()
    wait_until(group.is_done)
    assert group.statuses() == [JobStatus.STOPPED] * 2
    hosted = client.host_actor(Reporter, 1, name="here")
    job = client.submit(call("calls", lambda handle: handle.add(1), hosted.handle))
    assert client.cluster.result(job.job_id, timeout=200) == 2
    hosted.shutdown()


def test_in_an_actor_the_current_client_is_that_of_its_cluster(client: Client) -> None:
    actor = client.create_actor(Reporter, 0, name="reports")
    born, called, deeper = actor.roots(sys.executable)
    assert (born, called) == (client.cluster.root, client.cluster.root)
    if not isinstance(client, LocalClient):  # a subprocess of a thread knows nothing of that thread
        assert deeper == client.cluster.root


class Parent:
    """Answers one call at a time, and creates others that call it before they serve."""

    def name(self) -> str:
        return "parent"

    def create(self, kind: type) -> object:
        return current_client().create_actor(kind, current_actor().handle, name="child")


class Child:
    def __init__(self, parent: ActorHandle[Parent]) -> None:
        self.parent: str = parent.name()

    def whose(self) -> str:
        return self.parent


class Stillborn:
    def __init__(self, parent: ActorHandle[Parent]) -> None:
        raise KeyError(parent.name())


def test_an_actor_creates_others_whose_init_calls_it(client: Client) -> None:
    parent = client.create_actor(Parent, name="parent")
    assert parent.create.remote(Child).result(timeout=200).whose.remote().result(timeout=200) == "parent"
    never = parent.create.remote(Stillborn).result(timeout=200)
    with pytest.raises(ActorUnavailableError, match="KeyError: 'parent'"):
        never.whose.remote().result(timeout=200)


FROM_OUTSIDE = """
import pickle, sys, threading
holder, lock = pickle.load(sys.stdin.buffer), threading.Lock()
for call in (lambda: holder.take.remote(lock).result(200), lambda: holder.take(lock), holder.give):
    try:
        print(call())
    except Exception as error:
        print(" ".join(str(error).split()))
"""


def test_values_that_cannot_be_pickled_go_to_no_other_process(client: Client) -> None:
    holder = pickle.dumps(client.create_actor(actors.Holder, name="elsewhere"))
    ran = subprocess.run([sys.executable, "-c", FROM_OUTSIDE], input=holder, capture_output=True, check=True)
    told = ran.stdout.decode().splitlines()
    assert len(told) == 3, told
    assert all("pickle" in line for line in told), told


DRIVER = """
import os, sys, time
from fray.current_client import current_client
from fray.types import ActorConfig, CheckpointConfig, Entrypoint, JobRequest
job = current_client().submit(JobRequest("long", Entrypoint.from_binary("sleep", ["600"])))
print(job.job_id, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_driver_that_died_finds_its_job_when_it_is_started_again(client: Client) -> None:
    environment = {**os.environ, "FRAY_CLUSTER_SPEC": client.cluster.root, "FRAY_NAMESPACE": "nightly"}
    ran = [
        subprocess.run([sys.executable, "-c", DRIVER], env=environment, capture_output=True, text=True) for _ in "12"
    ]
    first, second = (run.stdout.strip() for run in ran)
    assert first
    assert first == second, ran[1].stderr
    (job,) = [info for info in client.cluster.list_jobs() if info.name == "long"]
    JobHandle(client.cluster, job.job_id).terminate()
