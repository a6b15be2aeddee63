"""An actor to try a context with."""


class SimpleActor:
    """A counter that calls add to. call_count: how often it was added to."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.call_count = 0

    def increment(self, amount: int = 1) -> int:
        """Add to the number, and return it."""
        self.call_count += 1
        self.value += amount
        return self.value

    def get_value(self) -> int:
        """The number."""
        return self.value
