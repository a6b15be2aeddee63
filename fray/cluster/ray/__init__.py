"""Jobs on Ray, for programs that have a Ray cluster and no bucket.

One Ray actor, the controller, keeps all jobs. Each replica is a Ray actor that runs the job's task as Fray's agents do.
Ray is imported when it is first used; the extra `ray` installs it. Reading order: `connection`, `demands` (a job's
resources as Ray's), `attempts` (the life of a record), `replica`, `attempt_run`, `controller`, `jobs` (`RayJobs`, the
cluster), `submission` (`RayCluster`, over HTTP).
"""
