"""The driver that Ray's job submission starts for a job of a `RayCluster`: `python -m fray.backends.ray.submitted`.

It launches the job inside of Ray, prints its output, and exits with its status. Asked to end, it stops the job.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from fray.backends.ray.connection import AUTO
from fray.backends.ray.jobs import RayJobs
from fray.backends.ray.submission_api import MODULE, SPEC_FILE
from fray.types import JobStatus
from fray_layouts.spec import JobSpec, WorkspaceSpec
from fray_runtime.current_task import on_stop
from fray_runtime.variables import read_variable


def main() -> int:
    """Run the job, and return the exit code."""
    package = Path(str(import_module(MODULE).__file__)).parent
    spec = msgspec.json.decode((package / SPEC_FILE).read_bytes(), type=JobSpec)
    given = json.loads(read_variable("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}").get("runtime_env", {})
    if code := given.get("working_dir"):
        environment = msgspec.structs.replace(spec.environment, workspace=WorkspaceSpec(blob=code))
        spec = msgspec.structs.replace(spec, environment=environment)
    cluster = RayJobs(AUTO)
    job = cluster.launch_spec(spec)
    on_stop(lambda: cluster.terminate(job))
    info = cluster.monitor(job)
    if info.status is not JobStatus.SUCCEEDED:
        print(f"job {job} {info.status}: {info.error_message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
