"""Words for messages to people."""

import pytest

from fray_layouts.units import counted, files_text, first_names, format_duration


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0s"), (4.25, "4.2s"), (59.4, "59s"), (190, "3m10s"), (7500, "2h5m"), (270_000, "3d3h")],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_counted_noun_is_in_the_singular_for_one_only() -> None:
    assert [counted(count, "core") for count in (0, 0.5, 1, 2, 1_234_567)] == [
        "0 cores",
        "0.5 cores",
        "1 core",
        "2 cores",
        "1234567 cores",
    ]
    assert files_text(1, 1500) == "1 file, 1.5 kB"
