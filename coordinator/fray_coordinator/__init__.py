"""The services of a cluster: all reads and writes of its bucket. This package runs no process of its own.

Agents (`fray_agents`) and clients (`fray`) call these services with a `Core`, one participant's view of one cluster.
Plain functions in `protocol` decide what is written, and every write is conditional on what was read.

Read in this order: `protocol`, `store`, `core`, `jobs`, `reconcile`, `actors`, `queue`, `worker_pools`, `fsck`.
"""
