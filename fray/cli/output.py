"""Printing lines, tables and JSON; characters that a terminal would obey are escaped."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from fray_layouts.escaping import escaped, escaped_json, one_line

Row = Sequence[str]


def echo(text: str, err: bool = False) -> None:
    click.echo(escaped(text), err=err)


def print_json(data: Any, one_line: bool = False) -> None:
    """Print a JSON document: indented, or on one line where several follow each other."""
    click.echo(escaped_json(json.dumps(data, ensure_ascii=False, indent=None if one_line else 2)))


def print_table(columns: Row, rows: Sequence[Row]) -> None:
    """Print a table: by rich on a terminal, else in columns that `awk` can split. A cell never spans lines."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, rows)
        return
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_ids(rows: Sequence[Row], columns: Row) -> None:
    """Print a table whose first column is ids; where no person reads it, the ids alone, one a line."""
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


def _draw(columns: Row, rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):  # the first one names the row: it is never cut
        width = max(len(row[0]) for row in (columns, *rows)) if number == 0 else None
        table.add_column(column, no_wrap=number == 0, min_width=width)
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)


_STYLES = {
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


def format_duration(seconds: float) -> str:
    """A duration for people, in its two largest units: "4.2s", "3m10s", "2h5m", "3d4h"."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h"
