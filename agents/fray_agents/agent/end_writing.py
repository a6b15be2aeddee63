"""Writing the end of an attempt, whatever the store or the object does meanwhile."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fray_agents.agent.membership import Membership
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.persist import is_no_outage, persist

T = TypeVar("T")


class LeftUnwritten(Exception):
    """The end of an attempt stays unwritten: the agent leaves, and others find that it did."""


async def until_written(member: Membership, job: str, write: Callable[[], Awaitable[T]]) -> T:
    """Do `write`, however long the store is away or the job's record is not one.

    Args:
        job: id of the job, for people.
        write: may raise StoreError and BadRecord.

    Raises:
        LeftUnwritten: an agent that leaves waits for an outage to end, but for no single record.
    """
    core, warnings = member.core, member.problems.warnings
    while True:
        try:
            return await persist(core, write, lambda error: member.leaving and is_no_outage(error))
        except StoreError as error:
            warnings.warn("%s has ended, which is left unwritten: %s", job, error)
            raise LeftUnwritten(job) from error
        except BadRecord as error:  # an object that someone may repair; until then it names no other holder
            warnings.warn("%s has ended, which cannot be written: %s", job, error)
            retry_at = core.clock.boottime() + core.settings.repair_interval
            while core.clock.boottime() < retry_at:
                if member.leaving:
                    raise LeftUnwritten(job) from error
                await core.clock.sleep(1.0)
