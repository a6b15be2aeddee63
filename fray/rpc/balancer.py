"""A round-robin balancer: chooses which actor of a name gets the next call, and avoids actors that failed.

While no actor fails, it makes no requests, because it keeps the list of actors. An actor that fails is ejected, and the
name is looked up again until as many actors have come as were lost. Lookups happen at growing intervals, and only when
calls are made. An ejected actor that is still listed is tried again after a time that grows with its failures. If there
is no other actor, every lookup brings it back.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from fray.cluster.actor_metadata import ActorEndpoint
from fray.errors import ActorNotFoundError
from fray.wait_line import Waiters, wait_with_progress
from fray_coordinator.backoff import backoff, exponential_wait

MIN_LOOKUP_PAUSE = 0.05
MAX_LOOKUP_PAUSE = 1.0
"""First and longest pause in seconds between two lookups of a name that lacks actors. An actor that is restarted on its
host is back within a second, and a lookup is one listing."""

MIN_EJECTION, MAX_EJECTION = 1.0, 60.0
"""Times in seconds for which an actor is ejected: after its first failure, when a short fault of the network is over,
and the longest."""

RECOVERY_WINDOW = 60.0
"""Seconds after a failure until a missing actor is no longer expected to come back. Most restarts take less."""

_REMEDY = "`fray ps` shows whether the jobs that serve it run, and why they wait"

ServerIdentity = tuple[str, str]
"""The actor's id and its server's identity. Each start of an actor's server has a new one."""


class Balancer:
    """The known endpoints of one name. It can be used from any number of threads.

    Args:
        name: the actors' name, for messages.
        find: looks up the name.
        waiters: those who wait for calls that a background thread makes; see `WaitLine`.
    """

    def __init__(self, name: str, find: Callable[[], Sequence[ActorEndpoint]], waiters: Waiters) -> None:
        self._name = name
        self._find = find
        self._waiters = waiters
        self._known: tuple[ActorEndpoint, ...] = ()
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._missing = 0
        self._failures: dict[ServerIdentity, tuple[int, float]] = {}
        self._pauses = backoff(MIN_LOOKUP_PAUSE, MAX_LOOKUP_PAUSE)
        self._pause = next(self._pauses)
        self._calm_at = 0.0
        self._due: float | None = None
        self._last_error: BaseException | None = None  # of the last ejection; None once no actor is missing

    def refresh(self) -> tuple[ActorEndpoint, ...]:
        """Look up the name now. Returns all endpoints that are listed, including ejected ones."""
        found = tuple(self._find())
        with self._lock:
            before = {_identity(endpoint) for endpoint in self._known}
            self._known = self._usable(found)
            self._missing -= sum(_identity(endpoint) not in before for endpoint in self._known)
            self._plan()
        return found

    def wait_for_size(self, size: int, deadline: float) -> None:
        """Look up the name at growing intervals until there are `size` actors.

        Raises TimeoutError if there are fewer at the deadline.
        """
        pauses = backoff(MIN_LOOKUP_PAUSE, MAX_LOOKUP_PAUSE)

        def are_up(within: float) -> bool:
            until = time.monotonic() + within
            while len(self.refresh()) < size:
                if (left := until - time.monotonic()) <= 0:
                    return False
                time.sleep(min(next(pauses), left))
            return True

        if not wait_with_progress(are_up, deadline - time.monotonic(), lambda: self._lack(size)):
            raise TimeoutError(self._lack(size))

    def _lack(self, size: int) -> str:
        return f"{len(self._known)} of {size} actors {self._name} are up; {_REMEDY}"

    def pick(self, deadline: float) -> ActorEndpoint:
        """The next endpoint in turn. If there is none, it waits for one until the deadline (of `time.monotonic`).

        Raises:
            ActorNotFoundError: there is none at the deadline.
        """
        if self._due is not None and time.monotonic() >= self._due:
            self._refresh_unless_busy()
        known = self._known or self._wait_for_any(deadline)
        return known[next(self._turn) % len(known)]

    def pick_known(self) -> ActorEndpoint | None:
        """The next endpoint in turn, without a wait; None if the name has to be looked up first."""
        known = self._known
        if not known or (self._due is not None and time.monotonic() >= self._due):
            return None
        return known[next(self._turn) % len(known)]

    def eject(self, endpoint: ActorEndpoint, error: BaseException) -> None:
        """Stop using an endpoint that could not be called, for a time that grows with its failures."""
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
            self._failures[_identity(endpoint)] = count, now + exponential_wait(count, MIN_EJECTION, MAX_EJECTION)

    def _usable(self, found: tuple[ActorEndpoint, ...]) -> tuple[ActorEndpoint, ...]:
        """The endpoints that are not ejected, or all of them if all are ejected."""
        now = time.monotonic()
        self._failures = {
            _identity(one): self._failures[_identity(one)] for one in found if _identity(one) in self._failures
        }
        return tuple(one for one in found if self._failures.get(_identity(one), (0, 0.0))[1] <= now) or found

    def _plan(self) -> None:
        """Set the time of the next lookup. There is none unless an actor is missing."""
        now = time.monotonic()
        if self._known and (self._missing <= 0 or now >= self._calm_at):
            self._due = self._last_error = None
            return
        self._due = now + self._pause
        self._pause = next(self._pauses)

    def _refresh_unless_busy(self) -> None:
        """Look up the name, unless another thread is doing so; then the known endpoints have to do."""
        if self._refreshing.acquire(blocking=False):
            try:
                self.refresh()
            finally:
                self._refreshing.release()

    def _wait_for_any(self, deadline: float) -> tuple[ActorEndpoint, ...]:
        """Wait for endpoints, and return them. One of several threads does the lookups, and the others wait for it."""
        with self._refreshing:
            within = deadline - time.monotonic()
            if not wait_with_progress(self._finds_any, within, lambda: self._lack(1), self._waiters):
                raise ActorNotFoundError(
                    f"no actor {self._name} could be called in time; {_REMEDY}"
                ) from self._last_error
            return self._known

    def _finds_any(self, within: float) -> bool:
        """Look up the name until there is an endpoint, at most `within` seconds. Returns whether there is one."""
        until = time.monotonic() + within
        while not self._known:
            now = time.monotonic()
            if self._due is None or now >= self._due:
                self.refresh()
            elif now >= until:
                return False
            else:
                time.sleep(min(self._due, until) - now)
        return True


def _identity(endpoint: ActorEndpoint) -> ServerIdentity:
    return endpoint.actor_id, endpoint.target.identity
