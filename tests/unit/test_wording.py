"""Words for messages to people."""

import pytest

from fray_layouts.wording import first_names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b and 1 more"),
        (list("abcd"), "a, b and 2 more"),
    ],
)
def test_a_message_lists_the_first_names_and_counts_the_others(names: list[str], text: str) -> None:
    assert first_names(names, 2) == text
