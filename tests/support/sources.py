"""The modules of the packages, for tests that look through all code; only what may have the sought names is parsed.

To parse them all takes three seconds. A name of the code stands in its text, so a search of the text finds every module
that a search of the syntax could find.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

from tests.support.pages import ROOT

FOLDERS = (
    "agents/fray_agents",
    "rpc/fray_rpc",
    "runtime/fray_runtime",
    "coordinator/fray_coordinator",
    "fray",
    "layouts/fray_layouts",
)


@cache
def texts() -> dict[str, str]:
    """By path from the repository's top, the text of every module."""
    modules = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text() for path in modules}


def trees(names: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    """Yield the path and the syntax of each module in whose text one of the names stands."""
    sought = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    yield from ((path, ast.parse(text)) for path, text in texts().items() if sought.search(text))
