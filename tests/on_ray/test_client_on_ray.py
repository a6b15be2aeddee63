"""The client on Ray: the behaviour that all backends share."""

from __future__ import annotations

from fray.backends.ray.client import RayClient
from fray.types import Entrypoint, JobRequest
from tests.behaviour.clients import *  # noqa: F403
from tests.support.waiting import PATIENCE, wait_until


def test_a_jobs_usage_is_reported_once_it_has_ended(client: RayClient) -> None:
    job = client.submit(JobRequest("sleeps", Entrypoint.from_binary("sleep", ["3600"])))
    wait_until(lambda: client.cluster.poll(job.job_id).start_time)
    assert job.usage() is None
    job.terminate()
    job.wait(PATIENCE, raise_on_failure=False)
    used = job.usage()
    assert used is not None
    assert used.memory_peak > 0
