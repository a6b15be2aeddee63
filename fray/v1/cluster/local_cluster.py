"""`fray.cluster.local_cluster` under a second name."""

from fray.cluster.local_cluster import LocalCluster as LocalCluster, LocalClusterConfig as LocalClusterConfig
