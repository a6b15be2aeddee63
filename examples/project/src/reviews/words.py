"""The words of a text by their stems: "handles" and "handle" are the same."""

import re
from collections.abc import Iterator

import snowballstemmer

_WORD = re.compile(r"[a-z]{5,}")
"""Letters of the shortest word that counts; shorter ones mostly have no meaning of their own."""

_stemmer = snowballstemmer.stemmer("english")


def stems(text: str) -> Iterator[str]:
    """The stem of each word that is long enough."""
    for word in _WORD.findall(text.lower()):
        yield _stemmer.stemWord(word)
