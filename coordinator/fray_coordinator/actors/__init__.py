"""Actors in the store: names, the endpoints published under them, checkpoints, and the secrets of calls.

The callers are processes that serve actors, their clients (`fray.actor`, `fray.rpc`), and the repair, which removes
endpoints that outlived their jobs. Calls of actors do not pass through this package.

An actor takes its name and publishes its endpoint (`naming`), stores its state (`checkpoints`), and its callers read
the key of its calls (`rpc_secrets`).
"""
