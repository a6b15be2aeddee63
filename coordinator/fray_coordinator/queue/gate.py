"""What is out in this process: an item that may have killed a process before is handed out only when it is alone."""

from __future__ import annotations


class Gate:
    """One for each process, whatever queues it consumes.

    Attributes:
        out: items that are being worked on.
        alone: the one that is out must stay alone.
    """

    def __init__(self) -> None:
        self.out = 0
        self.alone = False

    def admits(self, suspect: bool) -> bool:
        """Whether an item may be handed out now."""
        return not self.alone and (not suspect or self.out == 0)

    def enter(self, suspect: bool) -> None:
        self.out += 1
        self.alone = suspect

    def leave(self) -> None:
        self.out -= 1
        self.alone = False

    def forget(self) -> None:
        """This is another process now, in whose hands nothing is."""
        self.out = 0
        self.alone = False
