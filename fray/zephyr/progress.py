"""What a person sees of an execution: a bar for each stage, where there is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Bars on stderr; nothing if that is no terminal."""

    def __init__(self, name: str) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self._name = name
        self._tasks: dict[str, TaskID] = {}

    def begin(self, stage: str, title: str, shards: int) -> None:
        """A stage of so many shards begins."""
        self._tasks[stage] = self._bars.add_task(f"{self._name} {stage} {title}", total=shards)

    def advance(self, stage: str, done: int) -> None:
        """So many of its shards are done now."""
        self._bars.update(self._tasks[stage], completed=done)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()
