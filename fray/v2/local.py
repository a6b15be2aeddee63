"""See `fray.local_backend`."""

from fray.local_backend import LocalClient

__all__ = ["LocalClient"]
