"""Launching jobs and waiting for them.

cluster = current_cluster()
job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
cluster.wait(job, raise_on_failure=True)

Everything above launches and finds jobs through this package; it uses the services of `fray_coordinator`. Read `api`
and `placing` (the interface), `arguments`, `connected`, `launching`, `storage`, `submission`, `job_info`, then
`current` and `local_cluster`.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
