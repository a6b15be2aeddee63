"""The agent: claims jobs of a cluster, runs them on its host, and holds the leases on them.

`fray agent` runs it through `daemon`. Private clusters (`fray.cluster.local_cluster`) run it too, and programs that own
jobs use `driver`. The path of its work:

1. `agent` starts the loops, and `membership` joins the cluster and keeps the heartbeat; `leases` counts what
   the agent holds.
2. `pool_notices` and `hint_listener` say that something changed. `claimer` then looks into the index with
   `index_search`, and `candidates` says which entry is tried next.
3. `attempt_runner` runs the claimed job, each attempt on `replica_runner`, which also writes what remains of it.
4. Of a gang, `placement_loop` follows the owner, with `voting` and `private_pools`; `gang_runner`
   runs this agent's replicas.
5. For the whole cluster the agent runs `reconciler_loop` and `scaler_loop`.

`devices`, `pool_environments`, `predecessors` and `overcommit` say what the host can give; `problems` has the loops,
and shows what fails.
"""
