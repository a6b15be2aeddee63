"""The results of a check: problems and their remedies."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fray_coordinator.core import Core

BY_REPAIR = "`fray fsck --repair` puts it right, and so does any live agent soon"
BY_FSCK = "`fray fsck --repair` puts it right"
BY_SWEEP = "`fray fsck --repair` removes it"
BY_SETTING_ASIDE = "`fray fsck --repair` sets it aside under aside/, from where it can be moved back"
BY_HAND = "look at it, and remove it if nobody needs it"


@dataclass(frozen=True, slots=True)
class Problem:
    """An inconsistency. key: key of the object; what, remedy: for people."""

    key: str
    what: str
    remedy: str


Fix = Callable[[Core], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Moved:
    """An unreadable object that the repair has set aside: the key that it had, and the key that it has."""

    key: str
    to: str


@dataclass(frozen=True, slots=True)
class SuspectedProblem:
    """A problem as one snapshot shows it.

    Attributes:
        versions: versions of the records that it was concluded from. If a second snapshot shows the same problem with
            the same versions, it is not a transient state.
        fix: what `repair` does about it; None if the services do it, or nobody may.
    """

    problem: Problem
    versions: tuple[str, ...] = ()
    fix: Fix | None = None
