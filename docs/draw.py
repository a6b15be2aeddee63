"""Draws boxes, lines and arrows of plain text as SVG: `python docs/draw.py drawing.txt drawing.svg`.

Boxes are made of ┌ ─ ┐ │ └ ┘, lines branch at ├ ┤ ┬ ┴ ┼ and end in ◄ ► ▲ ▼; everything else is text. The first line of
text in a box is its title.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 8.0, 18.0
"""Pixels of one character."""

SIDES = {
    "─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu", "├": "udr", "┤": "udl", "┬": "lrd", "┴": "lru",
    "┼": "lrud", "►": "l", "◄": "r", "▲": "d", "▼": "u",
}  # fmt: skip
"""Where the line of each character goes: left, right, up, down."""

HEADS = {"►": "-4,-5 4,0 -4,5", "◄": "4,-5 -4,0 4,5", "▲": "-5,4 0,-4 5,4", "▼": "-5,-4 0,4 5,-4"}
FILLS = ("#f4f7fb", "#dfe8f3", "#c6d6e9")
"""Of boxes by how many others lie around them."""


def draw(text: str) -> str:
    """The SVG of a drawing."""
    rows = text.splitlines()
    width = max(map(len, rows))
    rows = [row.ljust(width) for row in rows]
    boxes = list(_boxes(rows))
    titles = {(top + 1, column) for left, top, right, _ in boxes for column in range(left, right)}
    body = [*_rectangles(boxes), *_lines(rows), *_heads(rows), *_texts(rows, titles)]
    size = f"{width * WIDTH:g} {len(rows) * HEIGHT:g}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="monospace" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>", ""])


def _at(column: float, row: float) -> tuple[float, float]:
    """The middle of a character."""
    return (column + 0.5) * WIDTH, (row + 0.5) * HEIGHT


def _boxes(rows: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of each box, the outer ones first."""
    columns = ["".join(column) for column in zip(*rows, strict=True)]
    for top, row in enumerate(rows):
        for edge in re.finditer("┌[─┬┴┼]*┐", row):
            side = re.compile("[│├┤┼]*└").match(columns[edge.start()], top + 1)
            if side is not None:
                yield edge.start(), top, edge.end() - 1, side.end() - 1


def _rectangles(boxes: list[tuple[int, int, int, int]]) -> Iterator[str]:
    for left, top, right, bottom in boxes:
        around = sum(a < left and b < top and c > right and d > bottom for a, b, c, d in boxes)
        (x, y), (end, floor) = _at(left, top), _at(right, bottom)
        yield f'<rect x="{x:g}" y="{y:g}" width="{end - x:g}" height="{floor - y:g}" fill="{FILLS[around]}"/>'


def _lines(rows: list[str]) -> Iterator[str]:
    columns = ["".join(column) for column in zip(*rows, strict=True)]
    for texts, begin, end, is_row in ((rows, "r", "l", True), (columns, "d", "u", False)):
        first, last = ("".join(char for char in SIDES if side in SIDES[char]) for side in (begin, end))
        both = "".join(set(first) & set(last))
        for number, text in enumerate(texts):
            for run in re.finditer(f"[{first}][{both}]*[{last}]", text):
                ends = [(place, number) if is_row else (number, place) for place in (run.start(), run.end() - 1)]
                (x, y), (to_x, to_y) = (_at(*place) for place in ends)
                yield f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="#44546a" stroke-width="1.5"/>'


def _heads(rows: list[str]) -> Iterator[str]:
    for number, row in enumerate(rows):
        for found in re.finditer(f"[{''.join(HEADS)}]", row):
            x, y = _at(found.start(), number)
            yield f'<polygon points="{HEADS[found[0]]}" transform="translate({x:g} {y:g})" fill="#44546a"/>'


def _texts(rows: list[str], titles: set[tuple[int, int]]) -> Iterator[str]:
    word = f"[^ {''.join(SIDES)}]+"
    for number, row in enumerate(rows):
        for found in re.finditer(f"{word}(?: {word})*", row):
            _, y = _at(0, number)
            weight = ' font-weight="bold"' if (number, found.start()) in titles else ""
            place = f'x="{found.start() * WIDTH:g}" y="{y + 4.5:g}" textLength="{len(found[0]) * WIDTH:g}"'
            yield f"<text {place}{weight}>{escape(found[0])}</text>"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(source.read_text()))
