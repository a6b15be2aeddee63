"""A round-robin balancer: which actor of a name gets the next call, and which are left alone for now.

Nothing is asked of the storage while all is well: the list of actors is kept until one of them fails. That one is
ejected, and the name is looked up again, at growing intervals and only as calls are made, until as many have come as
were lost. An actor that failed and is still listed is tried again less and less often; at every look if there is no
other.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from fray.cluster.actors import ActorEndpoint
from fray.errors import ActorNotFoundError
from fray.wait_line import wait_with_progress
from fray_coordinator.backoff import backoff, exponential_wait

MIN_LOOKUP_PAUSE = 0.05
MAX_LOOKUP_PAUSE = 1.0
"""Seconds between two looks at a name that lacks actors, the first and the longest: an actor that is restarted on its
host is back within a second, and a look is one listing."""

MAX_EJECTION = 60.0
"""Seconds that an actor which failed again and again is left alone; after its first failure it is one second."""

RECOVERY_WINDOW = 60.0
"""Seconds after a failure until an actor that is still missing is no longer expected: most restarts take less."""

_REMEDY = "`fray ps` says whether the jobs that serve it run, and why they wait"

ServerIdentity = tuple[str, str]
"""Actor id and server identity: new with each start of an actor's server."""


class Balancer:
    """The known endpoints of one name; usable from any number of threads.

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
        self._last_error: BaseException | None = None  # of the endpoint that was ejected last, unless all is well since

    def look(self) -> tuple[ActorEndpoint, ...]:
        """Look the name up now; all endpoints that are listed, also those that are ejected."""
        found = tuple(self._find())
        with self._lock:
            before = {_identity(endpoint) for endpoint in self._known}
            self._known = self._usable(found)
            self._missing -= sum(_identity(endpoint) not in before for endpoint in self._known)
            self._plan()
        return found

    def wait_for_size(self, size: int, deadline: float) -> None:
        """Look, at growing intervals, until there are `size`. Raises TimeoutError: there are fewer at the deadline."""
        pauses = backoff(MIN_LOOKUP_PAUSE, MAX_LOOKUP_PAUSE)

        def have_come(within: float) -> bool:
            until = time.monotonic() + within
            while len(self.look()) < size:
                if (left := until - time.monotonic()) <= 0:
                    return False
                time.sleep(min(next(pauses), left))
            return True

        if not wait_with_progress(have_come, deadline - time.monotonic(), lambda: self._lack(size)):
            raise TimeoutError(self._lack(size))

    def _lack(self, size: int) -> str:
        return f"{len(self._known)} of {size} actors {self._name} are up; {_REMEDY}"

    def pick(self, deadline: float) -> ActorEndpoint:
        """The next endpoint in turn; waits for one to come up.

        Raises:
            ActorNotFoundError: there is none at the deadline, a time of `time.monotonic`.
        """
        if self._due is not None and time.monotonic() >= self._due:
            self._look_if_due()
        known = self._known or self._awaited(deadline)
        return known[next(self._turn) % len(known)]

    def at_hand(self) -> ActorEndpoint | None:
        """The next endpoint in turn; None: the name has to be looked up first."""
        known = self._known
        if not known or (self._due is not None and time.monotonic() >= self._due):
            return None
        return known[next(self._turn) % len(known)]

    def eject(self, endpoint: ActorEndpoint, error: BaseException) -> None:
        """Leave an endpoint alone that could not be called, for a time that grows with its failures."""
        with self._lock:
            left = tuple(other for other in self._known if _identity(other) != _identity(endpoint))
            if len(left) == len(self._known):
                return
            self._last_error = error
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
        """The endpoints that are not ejected; all, if all are."""
        now = time.monotonic()
        self._failures = {
            _identity(one): self._failures[_identity(one)] for one in found if _identity(one) in self._failures
        }
        return tuple(one for one in found if self._failures.get(_identity(one), (0, 0.0))[1] <= now) or found

    def _plan(self) -> None:
        """Decide when to look next: not at all unless an actor is missing."""
        now = time.monotonic()
        if self._known and (self._missing <= 0 or now >= self._calm_at):
            self._due = self._last_error = None
            return
        self._due = now + self._pause
        self._pause = next(self._pauses)

    def _look_if_due(self) -> None:
        """Look, unless another thread does; then go on with the endpoints that are known."""
        if self._looking.acquire(blocking=False):
            try:
                self.look()
            finally:
                self._looking.release()

    def _awaited(self, deadline: float) -> tuple[ActorEndpoint, ...]:
        """The known endpoints, once there are any; one of several threads looks, and the others wait for it."""
        with self._looking:
            if not wait_with_progress(self._finds_any, deadline - time.monotonic(), lambda: self._lack(1)):
                raise ActorNotFoundError(
                    f"no actor {self._name} could be called in time; {_REMEDY}"
                ) from self._last_error
            return self._known

    def _finds_any(self, within: float) -> bool:
        """Whether there is an endpoint within so many seconds."""
        until = time.monotonic() + within
        while not self._known:
            now = time.monotonic()
            if self._due is None or now >= self._due:
                self.look()
            elif now >= until:
                return False
            else:
                time.sleep(min(self._due, until) - now)
        return True


def _identity(endpoint: ActorEndpoint) -> ServerIdentity:
    return endpoint.actor_id, endpoint.target.identity
