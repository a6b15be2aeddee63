"""See `fray.queue`; made by `make aliases`."""

from fray.queue import (
    FileQueue,
)

__all__ = [
    "FileQueue",
]
