"""See `fray.local_backend`; made by `make aliases`."""

from fray.local_backend import (
    LocalClient,
    LocalJobHandle,
)

__all__ = [
    "LocalClient",
    "LocalJobHandle",
]
