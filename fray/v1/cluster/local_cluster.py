"""The names of `fray.cluster.local_cluster` under a second module path."""

from fray.cluster.local_cluster import LocalCluster as LocalCluster, LocalClusterConfig as LocalClusterConfig
