"""The address of an actor with a job of its own, and the wait until the storage says where it serves."""

from collections.abc import Callable
from dataclasses import dataclass

from fray.cluster.job_info import info_of, last_attempt, original_exception
from fray.errors import ActorUnavailableError, JobFailed
from fray_coordinator.backoff import WARN_AFTER
from fray_coordinator.core import Core
from fray_coordinator.jobs.archive import find_record, reread_record
from fray_coordinator.jobs.poll_backoff import PollBackoff
from fray_coordinator.jobs.waiting_reasons import ActivityReports, WaitingReasons
from fray_coordinator.protocol.naming import Rank, rank
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import EndpointKey
from fray_layouts.records import EndpointRecord, JobRecord


@dataclass(frozen=True)
class ActorAddress:
    """The address of one actor. An actor that is created later under the same name has another `actor_id`.

    Attributes:
        job: the job that serves the actor, or the job that stands for the program that serves it.
        attempt: the number of the job's attempt if the actor ends with that attempt; 0 if each attempt serves it anew.
    """

    namespace: str
    name: str
    actor_id: str
    job: str
    attempt: int = 0

    def key(self) -> str:
        return EndpointKey(self.namespace, self.name, self.actor_id).key()

    def __str__(self) -> str:
        return f"actor {self.name!r} ({self.job})"


async def wait_for_endpoint(
    core: Core,
    address: ActorAddress,
    on_progress: Callable[[str, str], None] = lambda progress, why: None,
    failed: str = "",
    seen: Rank = (0, 0),
    on_machines: Callable[[], None] = lambda: None,
) -> EndpointRecord:
    """Wait until an actor can be called, and return its endpoint.

    Args:
        on_progress: called after two seconds with the actor's progress and the reason why it has not started.
        failed: nonce of an endpoint that did not answer; it is returned only if the storage says that its attempt runs.
        seen: the highest (incarnation, attempt) seen so far; a lower one was written late, by a dead process.
        on_machines: called if the actor's job waits in a pool that may have machines.

    Raises:
        ActorUnavailableError: the actor has ended for good.
    """
    pace, reasons, activity = PollBackoff(core), WaitingReasons(core, on_machines), ActivityReports(core)
    begin = core.clock.boottime()
    job: Stored[JobRecord] | None = None
    while True:
        endpoint = record_of(await core.records.read(address.key(), EndpointRecord))
        if endpoint is not None and rank(endpoint) < seen:
            endpoint = None
        if endpoint is not None and endpoint.nonce != failed:
            return endpoint
        before, job = job, await _read_job(core, address, job)
        if endpoint is not None and _serves(job.record, endpoint):
            return endpoint
        await reasons.update([job.record])
        await activity.update(job.record)
        if core.clock.boottime() - begin >= WARN_AFTER:
            on_progress(f"{address} {_state(job.record, activity.activity)}", reasons.text)
        if before is None or job.version != before.version:
            pace.reset()
        await pace.sleep()


async def _read_job(core: Core, address: ActorAddress, known: Stored[JobRecord] | None) -> Stored[JobRecord]:
    """Read the job's record. Raises ActorUnavailableError if the actor has ended for good."""
    if known is None:
        known = await find_record(core, address.job)
    else:
        known = await reread_record(core, known)
    if known is None:
        raise ActorUnavailableError(f"{address} has ended, and its job's record was removed")
    job = known.record
    if is_terminal(job):
        why = JobFailed.of(info_of(core.root, job))
        raise ActorUnavailableError(f"{address} has ended: {why}") from original_exception(job.exit)
    if address.attempt and job.attempt > address.attempt:
        raise ActorUnavailableError(f"{address} ended with attempt {address.attempt} of the job that hosted it")
    return known


def _state(job: JobRecord, activity: str) -> str:
    """Describe, for people, how far an actor's job is that does not serve calls yet.

    activity: what the job's agent reports, such as the building of an environment.
    """
    before = f"; {ended}" if (ended := last_attempt(job)) else ""
    if job.lease is None:
        return f"has not started{' again' * bool(before)}{before}"
    return f"starts on host {job.lease.host}: {activity or 'its __init__ has not returned'}{before}"


def _serves(job: JobRecord, endpoint: EndpointRecord) -> bool:
    return job.status == Status.RUNNING and job.attempt == endpoint.attempt
