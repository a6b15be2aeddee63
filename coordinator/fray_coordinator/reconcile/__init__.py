"""The work of no single job's holder: finding dead agents, putting their jobs back, admitting the inbox, repair.

Each agent calls `Reconciler.try_pass` every pass interval, and the one that holds the lease runs the pass; `fray
coordinate` and `fray fsck --repair` run parts of it. Everything here may run twice at once: each write is conditional.

To read: `reconciler` with `background_work`, `failure_detector`, `reaper`, `admission`, `repair` with `job_table`, then
what they remember between passes.
"""
