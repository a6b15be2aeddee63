"""The kinds of requests that fail now, which an agent reports as its problem while it lasts."""

from dataclasses import dataclass, field

from fray_coordinator.clock import Clock

FAILURE_MEMORY_SECONDS = 180.0
"""Seconds after which a failure that nothing of its kind has followed says nothing about now."""

MAX_REASON_CHARACTERS = 300
"""Characters of one failure's text that are kept."""


@dataclass(slots=True)
class FailureTracker:
    """The kinds of requests whose last one failed. A kind is a verb on a top-level name: ("put", "jobs")."""

    clock: Clock
    _failed: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)

    def failed(self, verb: str, key: str, why: str) -> None:
        """A request failed for good; its caller gets the error."""
        self._failed[_request_kind(verb, key)] = (self.clock.boottime(), why[:MAX_REASON_CHARACTERS])

    def worked(self, verb: str, key: str) -> None:
        """A request was answered."""
        if self._failed:
            self._failed.pop(_request_kind(verb, key), None)

    def now(self) -> dict[str, str]:
        """By kind ("put jobs"), why its last request failed."""
        since = self.clock.boottime() - FAILURE_MEMORY_SECONDS
        self._failed = {kind: (at, why) for kind, (at, why) in self._failed.items() if at >= since}
        return {" ".join(kind): why for kind, (_, why) in self._failed.items()}


def _request_kind(verb: str, key: str) -> tuple[str, str]:
    return verb, key.partition("/")[0]
