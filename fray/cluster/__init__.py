"""Clusters: launch jobs and wait for them.

cluster = current_cluster()
job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
cluster.wait(job, raise_on_failure=True)

The layers above launch and find jobs through this package; it uses the services of `fray_coordinator`. `api` and
`placing` are the interface. A request is checked by `arguments` and submitted by `launching`; `storage` is the cluster
in a bucket, on a connection (`connected`), and `local_cluster` the private one. `backends` finds the backend of a root
that names no bucket, `current` the cluster of a program, and `job_info` says what a job does. `pulling` and `job_files`
read the files that jobs keep.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
