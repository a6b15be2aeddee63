"""Programs that reach Ray in other ways than the tests do: through its proxy, or as a submitted job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobSubmissionClient

from tests.support.waiting import wait_until

PROGRAM = """
from fray import ActorConfig, JobRequest, ResourceConfig, current_client
from fray.errors import ActorUnavailableError, InvalidInput
from fray.job import create_job_ctx


class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

    def numbers(self):
        yield self.count


def where():
    return type(current_client()).__name__


NONE = ResourceConfig(cpu=0)
client = current_client()
jobs = [client.submit(JobRequest("where", where, NONE, replicas=2)), client.submit(JobRequest("told", where, NONE))]
print("jobs", [client.cluster.results(job.job_id) for job in jobs], jobs[1].logs())
group = client.create_actor_group(Counter, name="several", count=2)
print("actors", [handle.add() for handle in group.wait_ready()], [status.value for status in group.statuses()])
kept = client.create_actor(Counter, name="kept-by-a-driver", actor_config=ActorConfig(detached=True))
print("named", kept.add(), client.get_actor("kept-by-a-driver").add())
context = create_job_ctx("auto")
print("tasks", type(context).__name__, context.get([context.run(abs, -1), context.put(2)]))
try:
    print("streams", list(group.handles[0].numbers.stream()))
except InvalidInput as error:
    print("streams refused:", error.field)
group.shutdown()
kept._kill("is not needed")
while not group.is_done():
    pass
print("ended", [status.value for status in group.statuses()], client.cluster.available_slices("v4-8"))
client.shutdown()
"""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRAY_") and name != "RAY_ADDRESS"}
    return kept | more


FIRST = """
import ray
from fray import current_client
from fray.job import create_job_ctx
{use}
print(ray.get_runtime_context().gcs_address)
"""
"""A program whose first word to Ray is this one: Ray itself would start another Ray for some of them."""


@pytest.mark.parametrize(
    "use",
    [
        'create_job_ctx("auto").run(abs, -1).result()',
        'create_job_ctx("auto").put(1)',
        'current_client().create_actor(dict, name="first")',
        'current_client().cluster.available_slices("v4-8")',
    ],
)
def test_a_programs_first_call_of_any_kind_is_on_the_ray_that_it_names(use: str, local_ray: str) -> None:
    command = [sys.executable, "-c", FIRST.format(use=use)]
    here = environment(FRAY_CLUSTER_SPEC=f"ray:{local_ray}")
    ran = subprocess.run(command, env=here, capture_output=True, text=True, check=False)
    assert ran.stdout.split()[-1:] == [local_ray], ran.stderr


@pytest.mark.parametrize("root", ["ray:127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_listens_is_refused_at_once(root: str) -> None:
    command = [sys.executable, "-c", FIRST.format(use="current_client().cluster.list_jobs()")]
    ran = subprocess.run(
        command, env=environment(FRAY_CLUSTER_SPEC=root), capture_output=True, text=True, timeout=60, check=False
    )
    assert f"root: '{root}' is not accepted; there is no Ray" in ran.stderr.splitlines()[-1]


def test_a_ray_that_wants_another_token_says_so(local_ray: str) -> None:
    command = [sys.executable, "-c", FIRST.format(use="current_client().cluster.list_jobs()")]
    here = environment(FRAY_CLUSTER_SPEC=f"ray:{local_ray}", RAY_AUTH_TOKEN="0" * 64)
    ran = subprocess.run(command, env=here, capture_output=True, text=True, check=False)
    assert "this Ray requires a token" in ran.stderr.splitlines()[-1]


def check(output: str, streams: str) -> None:
    """The program's own output, without Ray's."""
    said = dict(line.split(" ", 1) for line in output.splitlines() if " " in line)
    assert {name: said[name] for name in ("jobs", "actors", "named", "tasks", "streams", "ended")} == {
        "jobs": "[['RayClient', 'RayClient'], ['RayClient']] ()",
        "actors": "[1, 1] ['running', 'running']",
        "named": "1 2",
        "tasks": "RayContext [1, 2]",
        "streams": streams,
        "ended": "['stopped', 'stopped'] 0",
    }


def test_a_program_outside_reaches_ray_through_its_proxy(nodes: Any, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    outside = environment(FRAY_CLUSTER_SPEC=nodes.proxy_address)
    ran = subprocess.run([sys.executable, str(script)], env=outside, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    check(ran.stdout, streams="refused: generator")


def test_a_program_that_was_submitted_to_ray_works_on_that_ray(dashboard: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    client = JobSubmissionClient(dashboard)
    job = client.submit_job(entrypoint="python program.py", runtime_env={"working_dir": str(tmp_path)})
    status = wait_until(lambda: found if (found := client.get_job_status(job)).is_terminal() else None)
    assert status.value == "SUCCEEDED", client.get_job_logs(job)
    check(client.get_job_logs(job), streams="[1]")
