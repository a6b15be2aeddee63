"""The agent: claims jobs of a cluster, runs them on its host, and keeps the leases on them.

Called by `fray agent`, which is `daemon`, by private clusters (`fray.cluster.local_cluster`), and by programs that own
jobs (`driver`). Read `membership` first, which every part asks; `agent`, which starts the parts; `heartbeat` and
`leases`; then the way of a job: `claimer` with `index_search`, `candidates` and `index_cursor`; `attempt_runner`
with `replica_runner` and `end_writing`; `gang_runner`; `job_watch`. The rest: `pool_environments`, `reconciler_duty`,
`predecessors`, `overcommit`, `hint_listener`, `problems`, `loops`.
"""
