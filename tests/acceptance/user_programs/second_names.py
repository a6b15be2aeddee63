"""Second names: what older programs import is the same as what `fray` offers."""

from __future__ import annotations

from typing import assert_type

import fray.client
import fray.job
import fray.types
from fray.cluster.base import Entrypoint as BaseEntrypoint
from fray.job.context import create_job_ctx
from fray.queue.file import FileQueue
from fray.v1.cluster import Cluster, JobRequest as RequestOfV1, create_cluster, current_cluster
from fray.v1.cluster.local_cluster import LocalCluster, LocalClusterConfig
from fray.v1.job import create_job_ctx as create_job_ctx_of_v1
from fray.v1.queue import Lease
from fray.v1.queue.file import FileQueue as FileQueueOfV1
from fray.v2 import JobRequest, LocalClient, ResourceConfig, current_client
from fray.v2.actor import ActorConfig, ActorGroup, ActorHandle
from fray.v2.client import Client, JobHandle, JobStatus, wait_all
from fray.v2.local_backend import LocalClient as LocalBackend
from fray.v2.types import Entrypoint


class Model:
    def name(self) -> str:
        return "model"


def of_v2(client: Client) -> None:
    job = client.submit(JobRequest("job", Entrypoint.from_binary("true"), ResourceConfig.with_cpu()))
    assert_type(job, fray.client.JobHandle)
    assert_type(wait_all([job]), list[JobStatus])
    handle = current_client().create_actor(Model, name="model", actor_config=ActorConfig())
    assert_type(handle, ActorHandle[Model])
    group: ActorGroup[Model] = LocalClient().create_actor_group(Model, name="models", count=2)
    same: fray.client.JobHandle = JobHandle(job.cluster, job.job_id)
    print(group, same, LocalBackend())


def of_v1() -> None:
    cluster: Cluster = current_cluster()
    made = create_cluster("local")
    local = LocalCluster(LocalClusterConfig())
    request: fray.types.JobRequest = RequestOfV1("job", BaseEntrypoint.from_binary("true"))
    print(cluster, made, local.launch(request))
    assert_type(create_job_ctx(), fray.job.JobContext)
    assert_type(create_job_ctx_of_v1("sync"), fray.job.JobContext)
    queue = FileQueueOfV1[int]("/tmp/queue")
    same: FileQueue[int] = queue
    assert_type(same.pop(), Lease[int] | None)
