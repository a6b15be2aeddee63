"""A small actor class to try job contexts with."""


class SimpleActor:
    """A counter. call_count: the number of calls of `increment`."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.call_count = 0

    def increment(self, amount: int = 1) -> int:
        """Add `amount` to the value, and return it."""
        self.call_count += 1
        self.value += amount
        return self.value

    def get_value(self) -> int:
        """The value."""
        return self.value
