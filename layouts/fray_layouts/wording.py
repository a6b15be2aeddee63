"""Words for messages to people."""

from collections.abc import Sequence


def first_names(names: Sequence[str], most: int) -> str:
    """The first `most` names, separated by commas, and the number of the others: "a, b and 7 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
