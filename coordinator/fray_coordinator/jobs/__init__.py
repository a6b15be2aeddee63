"""The life of one job: submission, claims, the end of attempts, stops, its children, and waiting for it.

Submitters and clients call `submission`, `waiting`, `logs`, `lookup` and `stopping`; an agent calls `claiming` and
`commit` for the jobs that it runs; the reconciler calls `cascade` and `pending_index`. Before there is a job, agents
and people call `pool_environments`. Decisions are in the modules of the same names in `protocol`.

A gang's life differs: `placement_index` is its index, and `gang_exits`, `gang_peers` and `gang_commit` are its end. The
`why_*` modules tell people why something waits, which `waiting_reasons` reports while they wait.

To read: `submission`, `pending_index`, `claiming`, `commit`, `stopping`, `cascade`, then the rest.
"""
