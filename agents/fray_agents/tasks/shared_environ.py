"""Environment variables of jobs in threads: they share `os.environ`, so jobs with different values cannot run at once.

Only the agent's thread calls this, so it has no lock.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from fray_layouts.errors import Permanent

_holders: Counter[tuple[str, str]] = Counter()
_before: dict[str, str | None] = {}


class EnvironConflict(Permanent):
    """Two jobs in threads that run at once ask for different values of a variable in `os.environ`, which they share."""


def acquire(variables: Mapping[str, str]) -> None:
    """Set the variables, all or none, until every holder has released them. Raises EnvironConflict."""
    for name, value in variables.items():
        if name in _before and not _holders[name, value]:
            raise EnvironConflict(
                f"{name} has another value in a job that runs now. Jobs in threads share `os.environ`: run jobs with "
                "different values one after the other, or as processes."
            )
    for name, value in variables.items():
        if name not in _before:
            _before[name] = os.environ.get(name)
            os.environ[name] = value
        _holders[name, value] += 1


def release(variables: Mapping[str, str]) -> None:
    """Release variables of `acquire`: the values from before return, unless somebody changed them meanwhile."""
    for name, value in variables.items():
        _holders[name, value] -= 1
        if _holders[name, value]:
            continue
        del _holders[name, value]
        before = _before.pop(name)
        if os.environ.get(name) == value:
            _restore(name, before)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value
