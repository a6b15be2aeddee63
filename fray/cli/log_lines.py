"""Printing the log lines of jobs, for `fray run` and `fray logs`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray_layouts.escaping import escaped_bytes

if TYPE_CHECKING:
    from fray_coordinator.jobs.logs import LogLine


class LinePrinter:
    """Prints the lines of a job's log, stdout to stdout and stderr to stderr, or each line as a JSON object.

    Args:
        raw: print byte for byte. Otherwise terminal control characters are escaped, except for the carriage returns of
            progress bars, which can hide no line but their own.
        merges: the lines come from several replicas, so each is printed whole, after its replica's number.
    """

    def __init__(self, as_json: bool, raw: bool, merges: bool = False) -> None:
        from fray.cluster.replica_lines import ReplicaLines

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
            output.print_json(_line_json(line), one_line=True)
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
