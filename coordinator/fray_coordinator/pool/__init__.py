"""Worker pools in the store, where a later driver finds them: their records, and the outcomes of tasks.

The callers are the drivers and workers of `fray.pool`, and the repair, which removes unused pools. Items travel through
a queue (`fray_coordinator.queue`).

Read in this order: `worker_pools`, `task_outcomes`.
"""
