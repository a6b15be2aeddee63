"""Checkpoints of durable actors: the state, and the outcomes of the calls that led to it, are written together.

**Invariant.** A call is applied once to the state that survives.
**Unsafe sequence.** A call changes the state, the state is written, and the process dies before the reply. The caller
asks again, and the next process, which has restored that state, applies the call a second time.
**Why this cannot happen.** A checkpoint holds the outcomes of all calls that its state has seen, the next process
answers those without running them, and nothing is written while a call runs. That no earlier process goes on writing or
answering is the subject of `fray_coordinator.protocol.naming`.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fray.actor.running_actor import CurrentActor
from fray.sync import persist_in_thread
from fray.types import CheckpointConfig
from fray_coordinator.actors.checkpoints import CheckpointLog, open_log
from fray_rpc import CallId
from fray_runtime.pickling import pickled_by_value
from fray_runtime.threads import start_thread

if TYPE_CHECKING:
    from fray.cluster.current_job import CurrentJob
    from fray.cluster.storage import StorageCluster

log = logging.getLogger("fray")

T = TypeVar("T")

_MAX_OUTCOMES = 10_000
"""Outcomes kept at most. A caller that dies never acknowledges its outcomes, so without a bound they would pile up; the
oldest are dropped first."""


class CheckpointJournal:
    """The `fray_rpc.Journal` of a durable actor. `restore` creates it; one call runs at a time."""

    def __init__(
        self,
        cluster: StorageCluster,
        checkpoints: CheckpointLog,
        policy: CheckpointConfig,
        instance: Any,
        outcomes: dict[CallId, bytes],
        actor: CurrentActor,
    ) -> None:
        self._cluster = cluster
        self._checkpoints = checkpoints
        self._policy = policy
        self._instance = instance
        self._outcomes = outcomes
        self._actor = actor
        self._lock = threading.Lock()
        self._running = False
        self._calls = 0
        self._written_at = time.monotonic()
        if policy.seconds is not None:
            start_thread(self._write_when_quiet, "fray-checkpoint", actor.fail)

    def known(self, call: CallId) -> bytes | None:
        """The outcome of a call that the restored state already includes. None if the call has to run now."""
        with self._lock:
            outcome = self._outcomes.get(call)
            self._running = outcome is None
            return outcome

    def applied(self, call: CallId, outcome: bytes, lowest: int) -> None:
        """Record that the call has run, and write a checkpoint if one is due.

        If this raises, the checkpoint was not written, and the reply must not be sent.
        """
        with self._lock:
            self._running = False
            self._outcomes = {
                known: kept
                for known, kept in list(self._outcomes.items())[-_MAX_OUTCOMES:]
                if known.client != call.client or known.sequence >= lowest
            }
            self._outcomes[call] = outcome
            self._calls += 1
            if self._is_due():
                self._write()

    def close(self) -> None:
        with self._lock:
            if self._calls:
                self._write()

    def _is_due(self) -> bool:
        policy = self._policy
        late = policy.seconds is not None and time.monotonic() - self._written_at >= policy.seconds
        return policy.replies or late or (policy.calls is not None and self._calls >= policy.calls)

    def _write_when_quiet(self) -> None:
        """Write checkpoints that become due while no call arrives."""
        while not self._actor.shutdown_event.wait(self._policy.seconds):
            with self._lock:
                if self._calls and not self._running and self._is_due():
                    self._write()

    def _write(self) -> None:
        try:
            state = pickled_by_value((self._outcomes, _state_of(self._instance)))
            persist_in_thread(lambda: self._cluster.run(lambda core: self._checkpoints.write(state)), "the checkpoint")
        except BaseException as error:  # Fenced, or the state cannot be pickled: no call would be answered any more
            self._actor.fail(error)
            raise
        self._calls, self._written_at = 0, time.monotonic()


def restore(
    cluster: StorageCluster,
    mine: CurrentJob,
    policy: CheckpointConfig,
    actor: CurrentActor,
    make: Callable[[], Any],
    cls: type,
) -> tuple[Any, CheckpointJournal]:
    """Restore the actor from its last checkpoint, or create it with `make` if there is none.

    Returns the actor and its journal.

    Raises:
        Fenced: a later attempt of the job has taken over the checkpoints.
        Exception: what `__init__` or restoring raised.
    """
    saved, checkpoints = persist_in_thread(
        lambda: cluster.run(lambda core: open_log(core, mine.job_id, actor.group_name, mine.attempt)),
        "the last checkpoint",
    )
    outcomes, state = pickle.loads(saved) if saved is not None else ({}, None)
    instance = make() if saved is None else _restored(cls, state, make)
    return instance, CheckpointJournal(cluster, checkpoints, policy, instance, outcomes, actor)


def _state_of(instance: Any) -> Any:
    return instance.__checkpoint__() if hasattr(instance, "__checkpoint__") else instance.__getstate__()


def _restored(cls: Any, state: Any, make: Callable[[], Any]) -> Any:
    """Create the actor with this state: by `__init__` and `__restore__` if the class has the latter, else as unpickling
    does."""
    if hasattr(cls, "__restore__"):
        instance = make()
        instance.__restore__(state)
        return instance
    instance = cls.__new__(cls)
    if hasattr(cls, "__setstate__"):
        instance.__setstate__(state)
    else:
        instance.__dict__.update(state or {})
    return instance
