"""The states of actors on Ray, as their hosts answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fray.cluster.ray.connection import asked_inside, connected, import_ray
from fray.errors import ActorUnavailableError
from fray.ray_backend.actor_calls import RayCaller
from fray.ray_backend.outcomes import value_of
from fray.types import JobStatus

_ANSWERS_WITHIN = 5.0
"""Seconds in which an actor that has answered before answers again, on a busy host too; else it is being restarted."""

_STARTS_WITHIN = 0.2
"""Seconds for an actor's first answer: the question stays asked, so a slow answer is only told the next time."""

_ENDED_BY_OTHERS = {"OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"}
"""Ray's reasons (`ActorDiedErrorContext.Reason`) for the end of an actor that did not fail."""


class ActorProbe:
    """Asks one actor whether it serves calls, and keeps the question until it is answered.

    Attributes:
        patience: seconds to wait for the answer.
        ended: why the actor has ended, once that is known.
    """

    def __init__(self, caller: RayCaller) -> None:
        self.patience = _STARTS_WITHIN
        self.ended: ActorUnavailableError | None = None
        self._caller = caller
        self._asked: Any = None
        self._has_failed: bool | None = None

    def ask(self) -> Any:
        """Ray's object of the answer; None: the actor has ended."""
        if self.ended is None and self._asked is None:
            try:
                self._asked = self._caller.control("ready")
            except ActorUnavailableError as error:
                self.ended = error
        return None if self.ended is not None else self._asked

    def status(self) -> JobStatus:
        """What the answer says, if it has come."""
        asked = self.ask()
        if asked is not None:
            try:
                value_of(asked, self._caller.what, timeout=0)
            except TimeoutError:
                return JobStatus.PENDING
            except ActorUnavailableError as error:
                self.ended = error
            else:
                self._asked, self.patience = None, _ANSWERS_WITHIN
                return JobStatus.RUNNING
        if self._has_failed is None:
            self._has_failed = not self._caller.was_ended and asked_inside(_has_failed, self._caller.actor_id)
        return JobStatus.FAILED if self._has_failed else JobStatus.STOPPED


def _has_failed(actor_id: str | None) -> bool:
    """Whether an actor that has ended did so by itself; those that Ray has forgotten were ended."""
    known = import_ray()._private.state.actors(actor_id) if actor_id is not None else {}
    if not known:
        return False
    end = known["DeathCause"].actor_died_error_context
    return end.Reason.Name(end.reason) not in _ENDED_BY_OTHERS


def statuses(probes: Sequence[ActorProbe]) -> list[JobStatus]:
    """Ask all actors at once. One that is restarted, or does not answer in time, is PENDING."""
    for patience in (_ANSWERS_WITHIN, _STARTS_WITHIN):
        asked = [probe.ask() for probe in probes if probe.patience == patience]
        if unanswered := [answer for answer in asked if answer is not None]:
            connected().wait(unanswered, num_returns=len(unanswered), timeout=patience)
    return [probe.status() for probe in probes]
