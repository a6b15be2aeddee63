"""The demo's output: a progress bar on a terminal, plain lines elsewhere, and tables at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PLAIN_STEPS = 6


class Screen:
    """Progress of the shards; use it as a context while they run."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._begun = time.monotonic()
        self._bar = Progress(
            TextColumn("shards"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._shards = self._bar.add_task("shards", total=None, note="")
        self._step = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line with the time."""
        self.console.print(f"{time.monotonic() - self._begun:5.1f} s  {text}", soft_wrap=True)

    def shards(self, done: int, total: int, note: str) -> None:
        """Show how many shards are done; outside of a terminal print a line now and then."""
        if not total:
            return
        self._bar.update(self._shards, completed=done, total=total, note=note)
        step = done * PLAIN_STEPS // total
        if not self.console.is_terminal and step != self._step:
            self.say(f"{done} of {total} shards are done; {note}")
        self._step = step

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table whose first column is text and whose other columns are figures."""
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
