"""Actors: objects that live in jobs of their own and are called from anywhere in their namespace.

counter = client.create_actor(Counter, 10, name="counter")
counter.add(1)                        # call and wait
future = counter.add.remote(1)        # call; future.result() waits
for item in counter.count.stream():   # what a generator yields, as it comes

Clients create actors through `create`, which also hosts them in the actor's process, with `checkpointing`. Callers have
a `handle` (in storage: `storage_actors`), whose calls go through `caller`; `group` and `named` find further actors.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
