"""Printing the log lines of jobs, for `fray run` and `fray logs`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray_layouts.escaping import escaped_bytes

if TYPE_CHECKING:
    from fray_coordinator.jobs.logs import LogLine


def print_lines(lines: Iterable[LogLine], as_json: bool, raw: bool) -> None:
    """Lines of a log: each stream to its own here; or a JSON object each.

    raw: byte for byte. Otherwise what a terminal would obey is escaped, but for the carriage returns of progress bars,
    which can hide no line but their own.
    """
    for line in lines:
        if as_json:
            output.print_json(_line_json(line), one_line=True)
            continue
        data = line.data if raw else "\r".join(map(escaped_bytes, line.data.split(b"\r"))).encode()
        click.echo(data + b"\n" * line.complete, nl=False, err=line.stream == "stderr")


def _line_json(line: LogLine) -> dict[str, Any]:
    """A line for scripts."""
    return {
        "type": "log",
        "attempt": line.attempt,
        "time": line.time,
        "stream": line.stream,
        "text": line.data.decode(errors="replace"),
        "complete": line.complete,
    }
