"""A value of a module that each process makes for itself."""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value of a module, such as a lock or the state of a thread. A forked child makes its own.

    A child does not have its parent's other threads, so a lock that one of them held would never be released there.

    Attributes:
        value: what `make` returned in this process.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.value = make()
        self._make = make
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.value = self._make()
