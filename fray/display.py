"""How objects show themselves in notebooks: as small tables, in HTML."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fray_layouts.escaping import escaped

MAX_ROWS = 20
"""Rows of a table that are shown, so that a group of a thousand actors leaves the notebook readable."""

_MAX_CELL = 400
"""Characters of a cell that are shown: an error with its traceback is read elsewhere."""


@dataclass(frozen=True)
class ShownTable:
    """A table as a notebook shows it. With `columns` it has a head; `hidden` rows were left out."""

    title: str
    rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    hidden: int = 0

    @classmethod
    def of(cls, title: str, facts: Mapping[str, object]) -> "ShownTable":
        """One row for each fact; those that are None or empty text are left out."""
        return cls(title, [(name, value) for name, value in facts.items() if value not in (None, "")])

    def html(self) -> str:
        head = f"<tr>{_cells('th', self.columns)}</tr>" if self.columns else ""
        rows = "".join(f"<tr>{_cells('td', row)}</tr>" for row in self.rows)
        more = f"<p>and {self.hidden} more</p>" if self.hidden else ""
        return f"<table><caption>{_text(self.title)}</caption>{head}{rows}</table>{more}"


class Shown:
    """An object that notebooks show as a table; everywhere else it has its `repr`."""

    __slots__ = ()

    def _shown(self) -> ShownTable | None:
        """The table; None if there is nothing more to show than the repr. It may read the storage."""
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        try:
            table = self._shown()
        except Exception:  # a cell that shows an object is not to fail because the storage is away
            return None
        return table.html() if table is not None else None


def _cells(tag: str, values: Iterable[object]) -> str:
    return "".join(f'<{tag} style="text-align: left">{_text(str(value))}</{tag}>' for value in values)


def _text(text: str) -> str:
    from html import escape  # few programs run in notebooks

    return escape(escaped(text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"))
