"""Jobs, actors and tasks on Ray, for programs that have a Ray cluster and no bucket.

client = RayClient("ray:auto")

One Ray actor, the `controller`, keeps all jobs. It takes a job through `demands` (its resources as Ray's) and
`attempts` (the life of its record); `attempt_run` starts each attempt, whose replicas are Ray actors (`replica`) that
run the job's task as Fray's agents do. `jobs` has `RayJobs`, the cluster of programs with a `connection`, and
`submission_api` has `RayCluster`, over HTTP. Actors are Ray's own: `client` and `actor_create` make them, `actor_host`
is their process, and `actor_calls` the caller's side. `job_context` runs tasks. Ray is imported when it is first used;
the extra `ray` installs it.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
