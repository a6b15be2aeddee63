"""Merges the output of a gang's replicas: whole lines, each behind the number of the replica that wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fray_coordinator.jobs.logs import LogLine

LONGEST_LINE = 64 * 1024
"""Bytes of a line that are kept until it is complete, which bounds the memory. A longer line is shown as several."""


class ReplicaLines:
    """Joins the pieces of each replica's lines, because mixed pieces of several replicas could not be read."""

    def __init__(self) -> None:
        self._unfinished: dict[tuple[int, int, str], LogLine] = {}

    def whole(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """The lines that these pieces complete, each with its prefix."""
        for line in lines:
            place = line.attempt, line.replica, line.stream
            before = self._unfinished.pop(place, None)
            whole = line if before is None else replace(line, data=before.data + line.data)
            if line.complete or len(whole.data) > LONGEST_LINE:
                yield _prefixed(whole)
            else:
                self._unfinished[place] = whole

    def rest(self) -> Iterator[LogLine]:
        """The lines that are not complete yet."""
        left, self._unfinished = self._unfinished, {}
        return map(_prefixed, left.values())


def _prefixed(line: LogLine) -> LogLine:
    return replace(line, data=b"[%d] %s" % (line.replica, line.data), complete=True)
