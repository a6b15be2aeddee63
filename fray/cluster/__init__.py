"""Clusters: launch jobs and wait for them.

cluster = current_cluster()
job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
cluster.wait(job, raise_on_failure=True)

The layers above launch and find jobs through this package; it uses the services of `fray_coordinator`. Reading order:
`api` and `placing` (the interface), `arguments`, `connected`, `launching`, `storage`, `submission`, `job_info`,
`current`, `local_cluster`.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
