"""Prints lines, tables, JSON and the log lines of jobs, with terminal control characters escaped."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fray_layouts.escaping import escaped, escaped_bytes, escaped_json, one_line

if TYPE_CHECKING:
    from fray_coordinator.jobs.logs import LogLine


Row = Sequence[str]

_NARROWEST, _INDENT = 24, 4
"""The least width at which the last column is folded beside the others; and its indent when it is folded below them."""


def echo(text: str, err: bool = False) -> None:
    click.echo(escaped(text), err=err)


def print_json(data: Any, one_line: bool = False) -> None:
    """Print a JSON document, indented; or on one line, for output with several documents."""
    click.echo(escaped_json(json.dumps(data, ensure_ascii=False, indent=None if one_line else 2)))


def print_table(columns: Row, rows: Sequence[Row], empty: str = "") -> None:
    """Print a table whose columns `awk` can split. Outside of a terminal each row is one line, and nothing is cut.

    A terminal gets colours, and the last column is folded: beside the others, or below its row. If there are no rows,
    `empty` is printed on stderr.
    """
    table = [columns, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    is_seen = sys.stdout.isatty()
    for number, row in enumerate(table):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        last = _fold(row[-1], sum(widths) + 2 * len(widths)) if is_seen and number else row[-1]
        if is_seen and "NO_COLOR" not in os.environ:
            *cells, last = [_style(cell, number == 0) for cell in (*cells, last)]
        click.echo("  ".join([*cells, last]).rstrip())
    if empty and not rows:
        echo(f"fray: {empty}", err=True)


def _style(cell: str, is_header: bool) -> str:
    colour = _COLOURS.get(cell.rstrip())
    return click.style(cell, fg=colour, bold=is_header or None) if colour or is_header else cell


def _fold(text: str, before: int) -> str:
    """Fold a text into lines that fit the terminal, beside the first `before` characters or below them."""
    room = shutil.get_terminal_size().columns - before
    if len(text) <= room:
        return text
    indent = "\n" + " " * (before if room >= _NARROWEST else _INDENT)
    width = max(room + before + 1 - len(indent), _NARROWEST)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)  # paths stay whole
    return indent.join(lines if room >= _NARROWEST else ["", *lines])


def print_ids(rows: Sequence[Row], columns: Row) -> None:
    """Print a table whose first column is ids; outside of a terminal only the ids, one on each line."""
    if sys.stdout.isatty():
        print_table(columns, rows)
        return
    for row in rows:
        click.echo(one_line(row[0]))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print labels with their texts; further lines of a text are indented."""
    width = max((len(label) for label, _ in pairs), default=0)
    for label, text in pairs:
        first, *others = escaped(text).splitlines() or [""]
        click.echo(f"{click.style(label.ljust(width), bold=True)}  {first}".rstrip())
        for line in others:
            click.echo(f"{' ' * width}  {line}".rstrip())


_COLOURS = {
    "running": "green",
    "succeeded": "green",
    "live": "green",
    "ok": "green",
    "failed": "red",
    "dead": "red",
    "error": "red",
    "stopped": "yellow",
    "warning": "yellow",
}


def format_dollars(amount: float | None) -> str:
    """A price for people; None is an unknown price."""
    return "unknown" if amount is None else f"${amount:,.2f}"


class LinePrinter:
    """Prints the lines of a job's log, stdout to stdout and stderr to stderr, or each line as a JSON object.

    Args:
        raw: print byte for byte. Otherwise terminal control characters are escaped, except for the carriage returns of
            progress bars, which can hide no line but their own.
        merges: the lines come from several replicas, so each is printed whole, after its replica's number.
    """

    def __init__(self, as_json: bool, raw: bool, merges: bool = False) -> None:
        from fray.cluster.log_printer import ReplicaLines

        self._as_json = as_json
        self._raw = raw
        self._replicas = ReplicaLines() if merges and not as_json else None

    def print(self, lines: Iterable[LogLine]) -> None:
        """Print lines, or pieces of lines; with several replicas only complete lines."""
        for line in self._replicas.whole(lines) if self._replicas is not None else lines:
            self._print(line)

    def end(self) -> None:
        """Print the rest, which has no newline at its end."""
        for line in self._replicas.rest() if self._replicas is not None else ():
            self._print(line)

    def _print(self, line: LogLine) -> None:
        if self._as_json:
            print_json(_line_json(line), one_line=True)
            return
        data = line.data if self._raw else b"\r".join(escaped_bytes(part).encode() for part in line.data.split(b"\r"))
        click.echo(data + b"\n" * line.complete, nl=False, err=line.stream == "stderr")


def _line_json(line: LogLine) -> dict[str, Any]:
    """A line for scripts."""
    return {
        "type": "log",
        "attempt": line.attempt,
        "replica": line.replica,
        "time": line.time,
        "stream": line.stream,
        "text": str(line),
        "complete": line.complete,
    }
