"""A second checker: the verdict of PyPI's `detangle` on a name's steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import detangle.lin

from tests.histories.checker import State, Step


def accepts(steps: Sequence[Step]) -> bool:
    """Whether one order explains all steps; hundreds of uncertain ones are too many for it."""
    return bool(_history(steps).check(_Register()).ok)


class _Register(detangle.lin.Model):
    """The register of checker.py in detangle's words."""

    def init(self) -> State:
        return None

    def step(self, state: Any, op: detangle.lin.Operation) -> tuple[bool, Any]:
        return (state in op.arg.before, op.arg.after)


def _history(steps: Sequence[Step]) -> detangle.lin.History:
    history = detangle.lin.History()
    operations: dict[int, detangle.lin.Operation] = {}
    moments = [(step.invoked, 0, place) for place, step in enumerate(steps)]
    moments += [(step.returned, 1, place) for place, step in enumerate(steps)]
    for _, ends, place in sorted(moments):
        if not ends:
            operations[place] = history.invoke(place, "step", steps[place])
        elif steps[place].certain:
            history.ok(operations[place])
        else:
            history.info(operations[place])
    return history
