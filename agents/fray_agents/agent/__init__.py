"""The agent: claims jobs of a cluster, runs them on its host, and keeps the leases on them.

Called by `fray agent`, which is `daemon`, by private clusters (`fray.cluster.local_cluster`), and by programs that own
jobs (`driver`). Read `membership` first, which every part asks; `agent`, which starts the parts; `heartbeat` and
`leases`; then the way of a job: `claimer` with `index_search`, `candidates` and `index_cursor`; `attempt_runner` with
`replica_runner` and `end_writing`; `job_watch`. Then the way of a gang: `placement_duty`, which puts together
`placement_watch` with `pool_plan`, `voting`, `reservation_rooms` with `private_pools`, and `gang_runner`. The duties
for the cluster are `reconciler_duty` and `scaler_duty`. The rest looks after the host, hints and what went wrong:
`gpu_watch`, `chip_watch`, `pool_environments`, `predecessors`, `overcommit`, `idle_exit`, `hint_listener` and
`hint_sender`, `problems`, `loops`.
"""
