"""Backends without storage: Fray's jobs and actors on the schedulers Ray and Iris.

`fray.cluster.backends` finds the backend of a root and imports its module `entry`, which opens clusters, clients and
job contexts. `without_storage` has what their clusters share: they refuse, with a remedy, what needs a bucket.
"""
