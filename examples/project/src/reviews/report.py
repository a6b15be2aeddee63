"""How often each word occurs, and how many stars go with it."""

import csv
from collections import defaultdict
from pathlib import Path

import humanize
from tabulate import tabulate

from reviews.words import stems


def report(path: Path, top: int) -> str:
    """A table of the `top` most frequent words of a file of reviews."""
    stars: defaultdict[str, list[int]] = defaultdict(list)
    with open(path, newline="", encoding="utf-8") as file:
        for review in csv.DictReader(file):
            for stem in set(stems(review["text"])):
                stars[stem].append(int(review["stars"]))
    ranked = sorted(stars, key=lambda stem: (-len(stars[stem]), stem))[:top]
    rows = [(stem, humanize.apnumber(len(stars[stem])), sum(stars[stem]) / len(stars[stem])) for stem in ranked]
    return str(tabulate(rows, headers=["word", "reviews", "stars"], floatfmt=".1f"))
