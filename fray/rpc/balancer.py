"""The actors of one name as a pool knows them.

Nothing is asked of the storage while all is well: a list is kept until one of its actors fails. That one is dropped and
the name is looked up again, at growing intervals and only as calls are made, until as many have come as were lost. One
that failed and is still listed is tried again less and less often; at every look if there is no other.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from fray.cluster.endpoint import ActorEndpoint
from fray.errors import ActorNotFoundError
from fray_coordinator.backoff import backoff, exponential_wait

MIN_LOOKUP_PAUSE = 0.05
MAX_LOOKUP_PAUSE = 1.0
"""Seconds between two looks at a name that lacks actors."""

MAX_EJECTION = 60.0
"""Seconds that one which failed again and again is left alone; one after its first failure."""

RECOVERY_WINDOW = 60.0
"""Seconds after a failure until what is still missing is no longer expected."""

ServerIdentity = tuple[str, str]
"""Of one start of an actor's server."""


class Balancer:
    """Known endpoints; may be used by many threads.

    Args:
        name: of the actors, for messages.
        find: looks the name up.
    """

    def __init__(self, name: str, find: Callable[[], Sequence[ActorEndpoint]]) -> None:
        self._name = name
        self._find = find
        self._known: tuple[ActorEndpoint, ...] = ()
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._missing = 0
        self._failures: dict[ServerIdentity, tuple[int, float]] = {}
        self._pauses = backoff(MIN_LOOKUP_PAUSE, MAX_LOOKUP_PAUSE)
        self._pause = next(self._pauses)
        self._calm_at = 0.0
        self._due: float | None = None

    def look(self) -> tuple[ActorEndpoint, ...]:
        """Look the name up now; all that is listed, also what failed and is not called for now."""
        found = tuple(self._find())
        with self._lock:
            before = {_identity(endpoint) for endpoint in self._known}
            self._known = self._usable(found)
            self._missing -= sum(_identity(endpoint) not in before for endpoint in self._known)
            self._plan()
        return found

    def await_size(self, size: int, deadline: float) -> None:
        """Look, at growing intervals, until there are so many; builtin TimeoutError at the deadline."""
        pauses = backoff(MIN_LOOKUP_PAUSE, MAX_LOOKUP_PAUSE)
        while (found := len(self.look())) < size:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"{found} of {size} actors {self._name} are up; do the jobs that serve them run?")
            time.sleep(min(next(pauses), left))

    def pick(self, deadline: float) -> ActorEndpoint:
        """The next one in turn; waits for one to come up.

        Raises:
            ActorNotFoundError: there is none at the deadline (`time.monotonic`).
        """
        if self._due is not None and time.monotonic() >= self._due:
            self._look_if_due()
        known = self._known or self._awaited(deadline)
        return known[next(self._turn) % len(known)]

    def at_hand(self) -> ActorEndpoint | None:
        """The next one in turn; None if the name has to be looked up for that."""
        known = self._known
        if not known or (self._due is not None and time.monotonic() >= self._due):
            return None
        return known[next(self._turn) % len(known)]

    def fail(self, endpoint: ActorEndpoint) -> None:
        """Drop one that could not be called."""
        with self._lock:
            left = tuple(other for other in self._known if _identity(other) != _identity(endpoint))
            if len(left) == len(self._known):
                return
            now = time.monotonic()
            if now >= self._calm_at:
                self._pauses = backoff(MIN_LOOKUP_PAUSE, MAX_LOOKUP_PAUSE)
            self._pause = next(self._pauses)
            self._calm_at = now + RECOVERY_WINDOW
            self._missing = max(self._missing, 0) + 1
            self._known = left
            self._due = now + self._pause
            count = self._failures.get(_identity(endpoint), (0, 0.0))[0] + 1
            self._failures[_identity(endpoint)] = count, now + exponential_wait(count, 1.0, MAX_EJECTION)

    def _usable(self, found: tuple[ActorEndpoint, ...]) -> tuple[ActorEndpoint, ...]:
        """Those that have not failed lately; all, if all have."""
        now = time.monotonic()
        self._failures = {
            _identity(one): self._failures[_identity(one)] for one in found if _identity(one) in self._failures
        }
        return tuple(one for one in found if self._failures.get(_identity(one), (0, 0.0))[1] <= now) or found

    def _plan(self) -> None:
        """When to look next: not at all unless something is missing."""
        now = time.monotonic()
        if self._known and (self._missing <= 0 or now >= self._calm_at):
            self._due = None
            return
        self._due = now + self._pause
        self._pause = next(self._pauses)

    def _look_if_due(self) -> None:
        """One of several threads looks, the others go on with what is known."""
        if self._looking.acquire(blocking=False):
            try:
                self.look()
            finally:
                self._looking.release()

    def _awaited(self, deadline: float) -> tuple[ActorEndpoint, ...]:
        """What is known once there is something; one of several threads looks, the others wait for what it finds."""
        with self._looking:
            while not self._known:
                now = time.monotonic()
                if self._due is None or now >= self._due:
                    self.look()
                elif now >= deadline:
                    raise ActorNotFoundError(
                        f"no actor {self._name} could be called in time; do the jobs that serve it run?"
                    )
                else:
                    time.sleep(min(self._due, deadline) - now)
            return self._known


def _identity(endpoint: ActorEndpoint) -> ServerIdentity:
    return endpoint.actor_id, endpoint.target.identity
