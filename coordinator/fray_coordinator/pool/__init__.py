"""Worker pools in the store, where a later driver finds them: their records, and the outcomes of tasks.

Called by the drivers and workers of `fray.pool`, and by the repair, which removes pools that nobody uses. Items go
through a queue (`fray_coordinator.queue`).

To read: `worker_pools`, `task_outcomes`.
"""
