"""A progress bar for tasks."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def with_progress_bar(items: Iterable[T], total: int, title: str) -> Iterator[T]:
    """Yield the items, with a bar on stderr that counts them up to `total` if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield from progress.track(items, total=total, description=title)
