"""Actors in the store: names, the endpoints published under them, checkpoints, and the secrets of calls.

Called by the processes that serve actors and by their callers (`fray.actor`, `fray.rpc`), and by the repair, which
removes endpoints that outlived their jobs. No call of an actor goes through here.

To read: `naming`, `discovery`, `checkpoints`, `rpc_secrets`.
"""
