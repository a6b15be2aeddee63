"""Finds out the status of actors on Ray by asking their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fray.cluster.ray.connection import asked_inside, connected, import_ray
from fray.errors import ActorUnavailableError
from fray.ray_backend.actor_calls import RayCaller
from fray.ray_backend.outcomes import value_of
from fray.types import JobStatus

_ANSWERS_WITHIN = 5.0
"""Seconds in which an actor that has answered before must answer again, also on a busy host. If it does not, it counts
as being restarted."""

_STARTS_WITHIN = 0.2
"""Seconds to wait for an actor's first answer. The request stays open, so a later answer is seen at the next check."""

_ENDED_BY_OTHERS = {"OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"}
"""Ray's reasons (`ActorDiedErrorContext.Reason`) for the end of an actor that was ended by others and did not fail."""


class ActorProbe:
    """Asks one actor whether it serves calls. The request stays open until it is answered.

    Attributes:
        patience: seconds to wait for the answer.
        ended: the error that says why the actor has ended, once that is known.
    """

    def __init__(self, caller: RayCaller) -> None:
        self.patience = _STARTS_WITHIN
        self.ended: ActorUnavailableError | None = None
        self._caller = caller
        self._asked: Any = None
        self._has_failed: bool | None = None

    def ask(self) -> Any:
        """Ray's object reference of the answer; None if the actor has ended."""
        if self.ended is None and self._asked is None:
            try:
                self._asked = self._caller.control("ready")
            except ActorUnavailableError as error:
                self.ended = error
        return None if self.ended is not None else self._asked

    def status(self) -> JobStatus:
        """The actor's status by the answer, if it has arrived; without an answer PENDING."""
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
    """Whether an actor that has ended did fail. If Ray does not know it any more, it was ended by others."""
    known = import_ray()._private.state.actors(actor_id) if actor_id is not None else {}
    if not known:
        return False
    end = known["DeathCause"].actor_died_error_context
    return end.Reason.Name(end.reason) not in _ENDED_BY_OTHERS


def statuses(probes: Sequence[ActorProbe]) -> list[JobStatus]:
    """Ask all actors at once. An actor that is being restarted or does not answer in time is PENDING."""
    for patience in (_ANSWERS_WITHIN, _STARTS_WITHIN):
        asked = [probe.ask() for probe in probes if probe.patience == patience]
        if unanswered := [answer for answer in asked if answer is not None]:
            connected().wait(unanswered, num_returns=len(unanswered), timeout=patience)
    return [probe.status() for probe in probes]
