"""Fray: jobs, actors and queues whose whole control plane is an object-storage bucket.

All public names are imported when they are first used: `import fray` costs next to nothing.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
