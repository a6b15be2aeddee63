"""The life of one job: submission, claims, the end of attempts, stops, its children, and waiting for it.

Submitters and clients call `submission`, `waiting`, `logs`, `lookup` and `stopping`. An agent calls `claiming` and
`commit` for the jobs that it runs. The reconciler calls `cascade` and `pending_index`. Agents and people call
`pool_environments` before there is a job. The decisions are in the modules of the same names in `protocol`.

A gang differs: `placement_index` is its index, and `gang_exits`, `gang_peers` and `gang_commit` write its end. The
`why_*` modules explain to people why something waits, and `waiting_reasons` reports it while they wait.

Read in this order: `submission`, `pending_index`, `claiming`, `commit`, `stopping`, `cascade`, then the rest.
"""
