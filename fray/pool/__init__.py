"""Pools of workers for tasks that keep nothing between them.

with WorkerPool(num_workers=4) as pool:
    print([future.result() for future in pool.map(len, ["a", "bb", "ccc"])])
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
