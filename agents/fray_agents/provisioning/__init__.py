"""Creates and removes the machines of pools: the providers, and the scaler that calls them.

An agent or a waiting program calls `scaler`. One run reads the cluster (`cluster_view`), and goes through each pool
(`pool_run`): the pool's `provider` lists its machines, `protocol.scaling` decides, and the provider makes and deletes
them. `identity` names the machines, and `prices` says what they cost. `provider_opening` opens the provider of a pool,
and checks the pool before its first machine is ordered.
"""
