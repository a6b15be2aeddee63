"""Shows objects in notebooks as small HTML tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fray_layouts.escaping import escaped

MAX_ROWS = 20
"""Rows of a table that are shown at most, so that a notebook stays readable with a group of a thousand actors."""

_MAX_CELL = 400
"""Characters of a cell that are shown at most: enough for a message, but not for a traceback."""


@dataclass(frozen=True)
class ShownTable:
    """A table for a notebook. `columns` is its head, if any; `hidden` is the number of rows that were left out."""

    title: str
    rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    hidden: int = 0

    @classmethod
    def of(cls, title: str, facts: Mapping[str, object]) -> "ShownTable":
        """Make a table with one row per fact. Facts that are None or "" are left out."""
        return cls(title, [(name, value) for name, value in facts.items() if value not in (None, "")])

    def html(self) -> str:
        head = f"<tr>{_cells('th', self.columns)}</tr>" if self.columns else ""
        rows = "".join(f"<tr>{_cells('td', row)}</tr>" for row in self.rows)
        more = f"<p>and {self.hidden} more</p>" if self.hidden else ""
        return f"<table><caption>{_text(self.title)}</caption>{head}{rows}</table>{more}"


class Shown:
    """An object that notebooks show as a table. Everywhere else its `repr` is used."""

    __slots__ = ()

    def _shown(self) -> ShownTable | None:
        """The table, for which it may read the storage; None if the repr is enough."""
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        try:
            table = self._shown()
        except Exception:  # a cell that shows an object must not fail because the storage is down
            return None
        return table.html() if table is not None else None


def _cells(tag: str, values: Iterable[object]) -> str:
    return "".join(f'<{tag} style="text-align: left">{_text(str(value))}</{tag}>' for value in values)


def _text(text: str) -> str:
    from html import escape  # imported late: few programs run in notebooks

    return escape(escaped(text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"))
