"""What worker pools leave in the store, so that a later driver can go on: their records, and the outcomes of tasks.

Called by the drivers and workers of `fray.pool`, and by the repair, which removes pools that nobody uses. Items go
through a queue (`fray_coordinator.queue`).

To read: `worker_pools`, `task_outcomes`.
"""
