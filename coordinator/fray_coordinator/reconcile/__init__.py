"""Cluster-wide work that no job's holder does: finding dead agents, requeueing their jobs, admitting the inbox, repair.

Each agent calls `Reconciler.try_pass` every pass interval, and the agent that holds the lease runs the pass. `fray
coordinate` and `fray fsck --repair` run parts of it. All of it may run twice at once, because each write is
conditional.

A pass goes through these modules in this order: `reconciler` with `background_work`, `failure_detector`, `reaper`,
`admission`, `repair` with `job_table`, `placement_repair` and `removal`.
"""
