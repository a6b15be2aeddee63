"""The agent: claims jobs of a cluster, runs them on its host, and holds the leases on them.

`fray agent` runs it through `daemon`. Private clusters (`fray.cluster.local_cluster`) run it too, and programs that own
jobs use `driver`. Reading order:

- `membership`, which every part uses, and `agent`, which starts the parts; then `heartbeat` and `leases`;
- a job: `claimer` with `index_search`, `candidates` and `index_cursor`; `attempt_runner` with `replica_runner` and
  `end_writing`; `job_watch`;
- a gang: `placement_loop`, which combines `placement_watch`, `pool_plan`, `voting`, `reservation_rooms` with
  `private_pools`, and `gang_runner`;
- what the agent does for the cluster: `reconciler_loop` and `scaler_loop`;
- the host, hints and problems: `gpu_watch` and `chip_watch` with `device_patience`, `pool_environments`,
  `predecessors`, `overcommit`, `idle_exit`, `hint_listener`, `placement_hints`, `problems`, `loops`.
"""
