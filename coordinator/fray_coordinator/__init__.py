"""The services on the store: every read and write that makes up a cluster. No process of its own runs here.

Agents (`fray_agents`) and clients (`fray`) call these services with a `Core`, one participant's view of one cluster.
What is written is decided by plain functions in `protocol`, and every write is conditional on what was read.

To read: `protocol`, `store`, `core`, `jobs`, `reconcile`, `actors`, `queue`, `pool`, `fsck`.
"""
