"""`fray.queue` under a second name."""

from fray.queue import FileQueue as FileQueue
