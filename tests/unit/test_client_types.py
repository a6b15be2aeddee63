"""The types of clients as mypy, and so an editor, infers them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from fray.client import Client, StorageClient, wait_all
from fray.current_client import current_client
from fray.local_backend import LocalClient
from fray.types import ActorConfig, Entrypoint, JobRequest
import fray
import fray.v2
from fray.actor import ActorContext
from fray.cluster.local_cluster import LocalClusterConfig
from fray.job.context import create_job_ctx
from fray.local_backend import LocalJobHandle
from fray.v1.cluster import ResourceConfig, set_current_cluster

class Counter:
    def add(self, amount: int) -> int:
        return amount

client = current_client()
handle = client.create_actor(Counter, name="counter")
group = client.create_actor_group(Counter, name="counters", count=2, actor_config=ActorConfig(max_concurrency=2))
job = client.submit(JobRequest("job", Entrypoint.from_callable(print, args=("hello",))))
reveal_type(handle)
reveal_type(handle.add.remote(1))
reveal_type(handle.add.submit(1))
reveal_type(group.wait_ready()[0])
reveal_type(client.host_actor(Counter, name="here").handle)
reveal_type(job)
reveal_type(job.wait(timeout=1.0))
reveal_type(wait_all([job]))
reveal_type(fray.current_client())
reveal_type(fray.v2.current_client())
reveal_type(create_job_ctx("sync"))
reveal_type(ResourceConfig.with_tpu("v5p-8").total_flops())
clients: list[Client] = [LocalClient(), StorageClient("memory://x")]
"""

HANDLE = "fray.actor.handle.ActorHandle[program.Counter]"
FUTURE = "fray.rpc.future.ActorFuture[Any]"
CLIENT = "fray.client.api.Client"
REVEALED = [
    *(HANDLE, FUTURE, FUTURE, HANDLE, HANDLE),
    *("fray.cluster.job_handle.JobHandle", "fray.types.JobStatus", "list[fray.types.JobStatus]", CLIENT, CLIENT),
    *("fray.job.job_context.JobContext", "float"),
]


@pytest.mark.slow
def test_the_types_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run([sys.executable, "-m", "mypy", str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert re.findall(r'Revealed type is "(.*)"', ran.stdout) == REVEALED
