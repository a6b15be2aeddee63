"""Jobs on Ray, for those who have a Ray cluster and no bucket.

One actor of Ray's, the controller, knows all jobs; each replica is an actor that runs the job's task as Fray's agents
do. Ray is imported when it is first used: the extra `ray` installs it. Read `connection`, `demands` (what is asked of
Ray), `attempts` (what follows what), `replica`, `attempt_run`, `controller`, then `jobs` (`RayJobs`, the cluster) and
`submission` (`RayCluster`, over HTTP).
"""
